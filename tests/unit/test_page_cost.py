"""What `benchmarks.page cost` makes of its turns."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.page import Turn, summary, verdict

STEP_S = 0.01


@pytest.mark.parametrize("more", [0.0, 0.02])
def test_processor_time_is_for_each_step_and_of_pairs_whichever_came_first(more: float) -> None:
    """Turns that begin and end within a step; those that are looked at take `more` of a processor."""
    ended = STEP_S * np.arange(1, 2001)
    steps = [np.array([ended, np.full(len(ended), STEP_S)])]
    seen = [index % 4 in {1, 2} for index in range(8)]
    turns = [Turn(one, 1.003 + 2 * n, 2.506 + 2 * n, 1.503 * (1 + more * one)) for n, one in enumerate(seen)]
    found = summary(turns, steps)
    assert found["unseen_cpu_ms"] == pytest.approx(1000 * STEP_S)
    assert found["cpu_ratio"] == pytest.approx(1 + more)
    assert found["ratio"] == pytest.approx(1.0)
    assert found["cpu_standard_error"] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("wall", "cpu", "said"),
    [
        ((1.005, 0.016), (1.0, 0.0004), "within"),
        ((1.0, 0.0004), (1.005, 0.0001), "within"),
        ((1.0, 0.016), (1.0, 0.001), "open"),
        ((1.0, 0.016), (1.003, 0.0001), "open"),
        ((1.005, 0.001), (1.0, 0.0004), "beyond"),
    ],
)
def test_nothing_is_called_within_the_goal_that_was_not_seen_to_be(
    wall: tuple[float, float], cpu: tuple[float, float], said: str
) -> None:
    assert verdict(wall, cpu) == said
