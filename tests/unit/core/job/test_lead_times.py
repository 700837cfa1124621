"""How far ahead the step of a switch is chosen."""

from __future__ import annotations

import pytest

from edl.core.job.lead_times import LeadTimes

LEAD_TIMES = LeadTimes(lease_s=25.0, notice_s=0.3, loss_s=0.1, hold_s=5.0)


@pytest.mark.parametrize(
    ("words", "took_s", "lead_s"),
    [(1, 0.0, 0.3), (6, 0.0, 1.8), (1, 2.0, 2.0), (1, 20.0, 5.0), (6, 0.5, 3.0), (6, 2.0, 5.0), (20, 2.0, 6.0)],
    ids=[
        "one word",
        "six",
        "it took longer before",
        "a call is held no longer",
        "six of those",
        "together no longer than a call is held",
        "unless the shortest take longer",
    ],
)
def test_a_word_has_the_time_that_it_took_before(words: int, took_s: float, lead_s: float) -> None:
    assert LEAD_TIMES.switch_step(100, 0.0, 0.1, words, took_s) == 101 + round(10 * lead_s)


def test_the_age_of_the_newest_report_is_added() -> None:
    assert LEAD_TIMES.switch_step(100, 1.0, 0.1) == 101 + 13


def test_where_no_step_time_is_known_a_word_takes_a_step() -> None:
    assert LEAD_TIMES.switch_step(100, 1.0, 0.0, 3) == 104
