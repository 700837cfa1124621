"""What survivors lost at a change of size, by their notes of steps."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.resizes import losses


def noted(*steps: tuple[int, float]) -> list[dict[str, Any]]:
    return [{"generation": generation, "at": at} for generation, at in steps]


def test_the_pause_and_a_slow_first_step_both_count():
    steady = [(1, 0.0), (1, 1.0), (1, 2.0), (1, 3.0)]
    switch = [(2, 4.5), (2, 7.5), (2, 8.0)]  # half a second in the switch, two in the step after it
    assert losses(noted(*steady, *switch)) == [pytest.approx(2.5)]


def test_each_ring_is_measured_by_its_own_steps():
    first, second = [(1, 0.0), (1, 1.0), (1, 2.0)], [(2, 3.0), (2, 5.0), (2, 7.0)]
    assert losses(noted(*first, *second, (3, 9.0), (3, 11.0))) == [pytest.approx(1.0), pytest.approx(0.0)]


def test_of_a_ring_in_which_no_step_was_timed_nothing_is_told():
    assert losses(noted((1, 0.0), (2, 9.0), (2, 10.0), (2, 11.0))) == []
