"""Rounding with a compiler and without: the same bits, and the largest element."""

from __future__ import annotations

import math
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from edl.core.worker import rounding

SIZES = (1, 7, 1000, rounding.AT_ONCE + 3)


@pytest.fixture(scope="module")
def by_numpy() -> ModuleType:
    """The module as it is without a compiler."""
    found = ModuleType("by_numpy")
    source = Path(rounding.__file__).read_text().partition("\nwith contextlib")[0]
    exec(compile(source, rounding.__file__, "exec"), vars(found))
    return found


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("factor", [1.0, 0.3, 2.0**20, 2.0**40])
def test_c_and_numpy_agree(by_numpy: ModuleType, size: int, factor: float) -> None:
    drawn = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    ours, theirs = np.full(size, 9, np.int32), np.full(size, 7, np.int32)
    for is_first in (True, False, False):
        largest = rounding.add_rounded(drawn, ours, factor, is_first)
        assert largest == by_numpy.add_rounded(drawn, theirs, factor, is_first) == np.abs(drawn).max()
        assert factor > 2.0**30 or (ours == theirs).all()
    if factor <= 2.0**30:
        means, others = np.zeros(size, np.float32), np.zeros(size, np.float32)
        assert rounding.mean_of(ours, means, 0.7 / factor) == by_numpy.mean_of(theirs, others, 0.7 / factor)
        assert means.tobytes() == others.tobytes()


def test_it_rounds_to_the_nearest_and_halves_to_the_even(by_numpy: ModuleType) -> None:
    source, found = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 0.49, -0.51], np.float32), np.zeros(7, np.int32)
    for add_rounded in (rounding.add_rounded, by_numpy.add_rounded):
        add_rounded(source, found, 1.0, True)
        assert found.tolist() == [0, 2, 2, 0, -2, 0, -1]
        add_rounded(source, found, 2.0, False)
        assert found.tolist() == [1, 5, 7, -1, -5, 1, -2]


def test_many_tensors_in_one_call_are_as_each_alone(by_numpy: ModuleType) -> None:
    drawn = np.random.default_rng(1)
    sources = [drawn.standard_normal(shape).astype(np.float32) for shape in [(3, 4), (), (5,), (0,)]]
    factors = [2.0**10, 2.0**20, 2.0**5, 1.0]
    for module in (rounding, by_numpy):
        found, alone = ([np.zeros(one.size, np.int32) for one in sources] for _ in range(2))
        for is_first in (True, False):
            largest = module.add_all_rounded(sources, found, factors, is_first)
            each = zip(sources, alone, factors, strict=True)
            assert largest == [rounding.add_rounded(*one, is_first) for one in each if one[0].size] + [0.0]
        assert [one.tolist() for one in found] == [one.tolist() for one in alone]
        with pytest.raises(ValueError, match=r"as many|shorter"):
            module.add_all_rounded(sources, found, factors[1:], True)
        with pytest.raises(ValueError, match=r"as many|broadcast"):
            module.add_all_rounded(sources, found[::-1], factors, True)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_the_largest(by_numpy: ModuleType, value: float) -> None:
    source = np.ones(50_000, np.float32)
    source[-3] = value
    for add_rounded in (rounding.add_rounded, by_numpy.add_rounded):
        largest = add_rounded(source, np.zeros(50_000, np.int32), 1.0, True)
        assert math.isnan(largest) if math.isnan(value) else largest == math.inf


def test_a_gradient_of_any_shape_goes_into_a_row(by_numpy: ModuleType) -> None:
    source = np.arange(35, dtype=np.float32).reshape(7, 5)
    for module in (rounding, by_numpy):
        found, means = np.zeros(35, np.int32), np.zeros((7, 5), np.float32)
        assert module.add_rounded(source, found, 1.0, True) == 34.0
        assert found.tolist() == list(range(35))
        assert module.mean_of(found, means, 2.0) == 68.0
        assert (means == 2 * source).all()
