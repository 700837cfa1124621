"""Over how many steps a state goes to newcomers."""

from __future__ import annotations

import pytest

from edl.core.job.lead_times import LeadTimes
from edl.core.switch.generation_switch import LEAST_BYTES, portion_count

LEAD_TIMES = LeadTimes.of(6.0)


@pytest.mark.parametrize(
    ("state_bytes", "step_time_s", "expected"),
    [
        (0, 0.1, 1),
        (10**9, 0.0, 1),
        (LEAST_BYTES, 0.01, 1),
        (LEAST_BYTES + 1, 0.01, 2),
        (500 * 10**6, 0.1, 20),
        (500 * 10**6, 1.0, 2),
        (500 * 10**6, 10.0, 1),
    ],
)
def test_a_portion_takes_half_a_step_or_is_of_some_size(state_bytes: int, step_time_s: float, expected: int) -> None:
    assert portion_count(state_bytes, step_time_s, LEAD_TIMES, 60.0) == expected


def test_it_is_through_before_the_leases_and_the_patience_of_the_others_are_at_their_end() -> None:
    assert portion_count(10**12, 0.1, LEAD_TIMES, 60.0) == LEAD_TIMES.lease_steps(0.1) // 2
    assert portion_count(10**12, 0.1, LEAD_TIMES, 2.0) == 20
    assert portion_count(10**12, 0.1, LEAD_TIMES, 0.05) == 1
