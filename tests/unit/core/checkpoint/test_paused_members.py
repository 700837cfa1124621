"""Whether members of a job that is to go stand: what they told before they were asked says little."""

from __future__ import annotations

import pytest

from edl.core.checkpoint.step_speed import stand
from edl.core.job.lead_times import LeadTimes

LEAD_TIMES = LeadTimes.of(10.0)


def at(age_s: float, asked_s: float, *, step_time_s: float = 0.05, members: int = 3) -> bool | None:
    return stand(
        age_s, asked_s=asked_s, step_time_s=step_time_s, deadline_s=25.0, members=members, lead_times=LEAD_TIMES
    )


def test_members_that_tell_steps_do_not_stand() -> None:
    assert at(0.1, 0.0) is False
    assert at(0.1, 5.0) is False


def test_an_old_report_decides_nothing_until_they_had_time_to_tell() -> None:
    """Mere progress is told each second at most, so steps may have been made since."""
    assert at(1.0, 0.0) is False
    assert at(10.0, 0.0) is None
    assert at(10.3, 0.3) is None
    assert at(10.5, 0.5) is True


def test_members_that_go_on_after_they_were_asked_do_not_stand() -> None:
    assert at(0.2, 0.8) is False


@pytest.mark.parametrize(("step_time_s", "stands_after_s"), [(0.05, 0.4), (1.0, 2.0), (4.0, 8.0)])
def test_two_usual_steps_are_waited_for(step_time_s: float, stands_after_s: float) -> None:
    assert at(stands_after_s - 0.1, 10.0, step_time_s=step_time_s) is False
    assert at(stands_after_s + 0.1, 10.0, step_time_s=step_time_s) is True


def test_a_step_too_long_for_the_deadline_is_not_waited_for() -> None:
    assert at(0.0, 0.0, step_time_s=20.0) is None
    assert at(0.8, 0.8, step_time_s=20.0) is True


def test_of_very_many_each_tells_less_often() -> None:
    assert at(0.6, 0.6, members=1000) is False
    assert at(0.8, 0.8, members=1000) is True
