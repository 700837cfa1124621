"""Whether a job is begun again, without a job: a story of ends, and what follows from each."""

from __future__ import annotations

import msgspec
import pytest

from edl.cluster.queue.end_causes import DIVERGED, REFUSED, STOPPED, EndCause
from edl.launch.life_outcome import (
    CRASHED,
    INTERRUPTED,
    KILLED,
    LOST,
    SPENT,
    Again,
    Enough,
    LaunchVerdict,
    LifeEnd,
    RestartRule,
    cause_of_failure,
)
from edl.protocol.record import FailedBy

BY_SIGNAL = LaunchVerdict(1, "failed", "worker 0 was killed", cause=KILLED, exits="was killed by SIGKILL")
BY_SCRIPT = LaunchVerdict(1, "failed", "worker 0 crashed", cause=CRASHED, exits="exited with code 1")


def ended(
    began: int, step: int, saved: int, verdict: LaunchVerdict = BY_SIGNAL, cause: str = "", restarts: int = 3
) -> LifeEnd:
    return LifeEnd(verdict, began, step, cause, saved, restarts)


def story(*ends: LifeEnd, allowed: int = 3) -> Again | Enough:
    """What follows from the last one; another life followed each of the others."""
    restarts = RestartRule(allowed)
    *before, last = ends
    for end in before:
        assert isinstance(restarts.decide(end), Again), end
    return restarts.decide(last)


def test_a_life_that_was_killed_is_followed_by_another_which_costs_one_restart():
    assert story(ended(0, 57, 40)) == Again("worker 0 was killed", 2)
    assert story(ended(0, 0, 0)) == Again("worker 0 was killed", 2), "also before anything was trained"


def test_the_same_failure_twice_with_nothing_between_is_enough():
    end = story(ended(0, 57, 40), ended(40, 57, 40))
    assert isinstance(end, Enough)
    assert end.verdict == msgspec.structs.replace(
        BY_SIGNAL,
        reason="worker 0 was killed; it had failed so before, and nothing beyond step 57 was trained or saved in "
        "between, so it is not begun again",
    )
    assert isinstance(story(ended(0, 57, 40), ended(40, 50, 40)), Enough), "not even so far as before"
    assert isinstance(story(ended(40, 40, 40), ended(40, 40, 40)), Enough), "nothing was trained at all"


def test_progress_is_a_step_that_no_life_had_made_or_a_newer_checkpoint():
    assert isinstance(story(ended(0, 57, 40), ended(40, 58, 40)), Again)
    assert isinstance(story(ended(0, 57, 40), ended(40, 57, 50)), Again)
    far, back, again = ended(0, 57, 40), ended(40, 50, 40, BY_SCRIPT), ended(40, 57, 40)
    assert isinstance(story(far, back, again), Enough), "the step of the life before last counts too"
    assert isinstance(story(far, ended(40, 60, 50), ended(50, 60, 50)), Enough)


def test_another_failure_is_no_repetition():
    assert isinstance(story(ended(0, 57, 40), ended(40, 57, 40, BY_SCRIPT)), Again)
    assert isinstance(story(ended(0, 57, 40), ended(40, 57, 40, BY_SCRIPT), ended(40, 57, 40)), Enough)


def test_failures_are_told_apart_by_what_workers_ended_by_but_for_numbers():
    first = ended(0, 57, 40, BY_SCRIPT, "OSError: [Errno 5] at 0x7f80aa12")
    assert isinstance(story(first, ended(40, 57, 40, BY_SCRIPT, "OSError: [Errno 6] at 0x7f80bb12")), Enough)
    assert isinstance(story(first, ended(40, 57, 40, BY_SCRIPT, "ValueError: [Errno 5] at 0x7f80aa12")), Again)
    assert isinstance(story(first, ended(40, 57, 40, BY_SIGNAL, "OSError: [Errno 5] at 0x7f80aa12")), Enough)


def test_progress_forgets_the_failures_before():
    lives = (ended(0, 57, 40), ended(40, 70, 60, BY_SCRIPT), ended(60, 70, 60))
    assert isinstance(story(*lives), Again)


def test_a_script_that_fails_at_its_start_is_not_tried_again_unless_a_life_has_trained():
    end = story(ended(0, 0, 0, BY_SCRIPT))
    assert isinstance(end, Enough)
    assert end.verdict.reason.endswith("a script that fails before its first step would do so again")
    assert isinstance(story(ended(40, 40, 40, BY_SCRIPT)), Enough), "it was begun from a checkpoint"
    assert isinstance(story(ended(0, 1, 0, BY_SCRIPT)), Again)
    lost = LaunchVerdict(1, "failed", "the first ring does not form", cause=LOST)
    assert isinstance(story(ended(0, 0, 0, lost)), Enough), "how its workers ended may not be known"
    assert isinstance(story(ended(0, 1, 0, lost)), Again)
    assert isinstance(story(ended(0, 9, 0), ended(0, 0, 0, BY_SCRIPT)), Again), "the device may not be free yet"


def test_restarts_are_counted():
    end = story(ended(0, 57, 40, restarts=0))
    assert isinstance(end, Enough)
    assert end.verdict.reason == "worker 0 was killed; --max-restarts 3 is used up"
    assert story(ended(0, 57, 40, restarts=0), allowed=0) == Enough(BY_SIGNAL), "nothing is said where none is allowed"
    assert story(ended(0, 57, 40, restarts=1)) == Again("worker 0 was killed", 0)


@pytest.mark.parametrize("cause", [STOPPED, DIVERGED, REFUSED, SPENT])
def test_what_another_life_does_not_mend_is_the_end(cause: EndCause):
    verdict = LaunchVerdict(1, "failed", "why", cause=cause)
    end = story(ended(0, 57, 40, verdict))
    assert isinstance(end, Enough)
    more = "; it is not begun again: what differs may be in its checkpoints too" if cause is DIVERGED else ""
    assert (end.verdict.code, end.verdict.state, end.verdict.reason) == (1, "failed", f"why{more}")


def test_the_word_of_the_leader_counts_more_than_ends_of_workers_and_a_signal_more_than_an_exception():
    told = {by: cause_of_failure(by, [1, -9]) for by in FailedBy}
    assert told == {
        FailedBy.FAULT: KILLED,
        FailedBy.STOP: STOPPED,
        FailedBy.DIVERGENCE: DIVERGED,
        FailedBy.REFUSAL: REFUSED,
    }
    assert cause_of_failure(FailedBy.FAULT, [1, 137]) == KILLED
    assert cause_of_failure(FailedBy.FAULT, [1, 168]) == KILLED, "a real-time signal has no name"
    assert cause_of_failure(FailedBy.FAULT, [1, 3, 128, 193, 255]) == CRASHED, "there are no such signals"
    assert cause_of_failure(FailedBy.FAULT, []) == LOST


def test_ends_that_are_none_of_a_failure_stay_as_they_are():
    for verdict in (
        LaunchVerdict(0, "finished"),
        LaunchVerdict(75, "preempted", "saved"),
        INTERRUPTED,
    ):
        assert story(ended(0, 57, 40, verdict)) == Enough(verdict)


def test_a_job_that_was_asked_to_go_and_dies_can_be_gone_on_with_elsewhere():
    going = msgspec.structs.replace(ended(0, 57, 40), to_go=True)
    end = story(going)
    assert isinstance(end, Enough)
    assert (end.verdict.code, end.verdict.state, end.verdict.cause) == (75, "preempted", None)
    assert "worker 0 was killed" in end.verdict.reason
    wrong = msgspec.structs.replace(ended(0, 0, 0, BY_SCRIPT), to_go=True)
    end = story(wrong)
    assert isinstance(end, Enough)
    assert end.verdict.code == 1, "what is wrong is wrong elsewhere too"
