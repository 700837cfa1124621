"""`edl.core.worker.fixed_point`: what is rounded fits into 32 bits, whatever is added up."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.core.worker import fixed_point as rules

EXPONENTS = st.integers(rules.SMALLEST, 127)


@given(st.integers(1, 4096), EXPONENTS)
def test_the_sum_of_all_virtual_workers_fits(virtual: int, exponent: int) -> None:
    each = round(2.0**exponent * rules.units(exponent, virtual))
    assert virtual * (each + 1) < 2**31
    assert 2 * virtual * (each + 1) >= 2**30, "no bit is given away"


@given(st.integers(1, 4096), EXPONENTS)
def test_units_are_powers_of_two_that_floats_have(virtual: int, exponent: int) -> None:
    units = rules.units(exponent, virtual)
    assert math.frexp(units)[0] == 0.5
    assert 2.0**-126 <= units < 2.0**128


@given(st.floats(0, 3e38))
def test_what_an_exponent_is_needed_for_fits(largest: float) -> None:
    assert largest < 2.0 ** rules.exponent_of(largest)
    assert rules.fits(largest, rules.needed(largest))
    assert not rules.fits(largest * 4, rules.needed(largest)) or largest < 2.0 ** (rules.SMALLEST - 1)


def test_the_next_exponent_has_headroom_over_the_mean_and_falls_slowly() -> None:
    assert rules.following(1.0, -96, 8) == 1 + rules.HEADROOM
    assert rules.following(0.0, 10, 8) == 10 - rules.FALL
    assert rules.following(1.0, -96, 256) == 1 + 8, "one of 256 may have given all of it"
    assert rules.following(2.0, 3, 8) > rules.following(1.0, 3, 8)


@pytest.mark.parametrize(("virtual", "bits"), [(1, 30), (2, 29), (3, 28), (4, 28), (8, 27)])
def test_each_doubling_of_virtual_workers_costs_a_bit(virtual: int, bits: int) -> None:
    assert rules.room(virtual) == bits
