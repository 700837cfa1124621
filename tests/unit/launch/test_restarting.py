"""Whether a job is begun again, without a job: a story of ends, and what follows from each."""

from __future__ import annotations

import msgspec
import pytest

from edl.launch.restarting import PROSPECTS, Again, Enough, LifeEnd, Restarting
from edl.launch.verdicts import INTERRUPTED, EndKind, LaunchVerdict

KILLED = LaunchVerdict(1, "failed", "worker 0 was killed", kind=EndKind.KILLED, exits="was killed by SIGKILL")
CRASHED = LaunchVerdict(1, "failed", "worker 0 crashed", kind=EndKind.CRASHED, exits="exited with code 1")


def ended(
    began: int, step: int, saved: int, verdict: LaunchVerdict = KILLED, cause: str = "", restarts: int = 3
) -> LifeEnd:
    return LifeEnd(verdict, began, step, cause, saved, restarts)


def story(*ends: LifeEnd, allowed: int = 3) -> Again | Enough:
    """What follows from the last one; another life followed each of the others."""
    restarting = Restarting(allowed)
    *before, last = ends
    for end in before:
        assert isinstance(restarting.decide(end), Again), end
    return restarting.decide(last)


def test_a_life_that_was_killed_is_followed_by_another_which_costs_one_restart():
    assert story(ended(0, 57, 40)) == Again("worker 0 was killed", 2)
    assert story(ended(0, 0, 0)) == Again("worker 0 was killed", 2), "also before anything was trained"


def test_the_same_failure_twice_with_nothing_between_is_enough():
    end = story(ended(0, 57, 40), ended(40, 57, 40))
    assert isinstance(end, Enough)
    assert end.verdict == msgspec.structs.replace(
        KILLED,
        reason="worker 0 was killed; it had failed so before, and nothing beyond step 57 was trained or saved in "
        "between, so it is not begun again",
    )
    assert isinstance(story(ended(0, 57, 40), ended(40, 50, 40)), Enough), "not even so far as before"
    assert isinstance(story(ended(40, 40, 40), ended(40, 40, 40)), Enough), "nothing was trained at all"


def test_progress_is_a_step_that_no_life_had_made_or_a_newer_checkpoint():
    assert isinstance(story(ended(0, 57, 40), ended(40, 58, 40)), Again)
    assert isinstance(story(ended(0, 57, 40), ended(40, 57, 50)), Again)
    far, back, again = ended(0, 57, 40), ended(40, 50, 40, CRASHED), ended(40, 57, 40)
    assert isinstance(story(far, back, again), Enough), "the step of the life before last counts too"
    assert isinstance(story(far, ended(40, 60, 50), ended(50, 60, 50)), Enough)


def test_another_failure_is_no_repetition():
    assert isinstance(story(ended(0, 57, 40), ended(40, 57, 40, CRASHED)), Again)
    assert isinstance(story(ended(0, 57, 40), ended(40, 57, 40, CRASHED), ended(40, 57, 40)), Enough)


def test_failures_are_told_apart_by_what_workers_ended_by_but_for_numbers():
    first = ended(0, 57, 40, CRASHED, "OSError: [Errno 5] at 0x7f80aa12")
    assert isinstance(story(first, ended(40, 57, 40, CRASHED, "OSError: [Errno 6] at 0x7f80bb12")), Enough)
    assert isinstance(story(first, ended(40, 57, 40, CRASHED, "ValueError: [Errno 5] at 0x7f80aa12")), Again)
    assert isinstance(story(first, ended(40, 57, 40, KILLED, "OSError: [Errno 5] at 0x7f80aa12")), Enough)


def test_progress_forgets_the_failures_before():
    lives = (ended(0, 57, 40), ended(40, 70, 60, CRASHED), ended(60, 70, 60))
    assert isinstance(story(*lives), Again)


def test_a_script_that_fails_at_its_start_is_not_tried_again_unless_a_life_has_trained():
    end = story(ended(0, 0, 0, CRASHED))
    assert isinstance(end, Enough)
    assert end.verdict.reason.endswith("a script that fails before its first step would do so again")
    assert isinstance(story(ended(40, 40, 40, CRASHED)), Enough), "it was begun from a checkpoint"
    assert isinstance(story(ended(0, 1, 0, CRASHED)), Again)
    lost = LaunchVerdict(1, "failed", "the first ring does not form")
    assert isinstance(story(ended(0, 0, 0, lost)), Enough), "how its workers ended may not be known"
    assert isinstance(story(ended(0, 1, 0, lost)), Again)
    assert isinstance(story(ended(0, 9, 0), ended(0, 0, 0, CRASHED)), Again), "the device may not be free yet"


def test_restarts_are_counted():
    end = story(ended(0, 57, 40, restarts=0))
    assert isinstance(end, Enough)
    assert end.verdict.reason == "worker 0 was killed; --max-restarts 3 is used up"
    assert story(ended(0, 57, 40, restarts=0), allowed=0) == Enough(KILLED), "nothing is said where none is allowed"
    assert story(ended(0, 57, 40, restarts=1)) == Again("worker 0 was killed", 0)


@pytest.mark.parametrize("kind", [kind for kind in EndKind if not PROSPECTS[kind].again])
def test_what_another_life_does_not_mend_is_the_end(kind):
    verdict = LaunchVerdict(1, "failed", "why", kind=kind)
    end = story(ended(0, 57, 40, verdict))
    assert isinstance(end, Enough)
    assert end.verdict.reason.startswith("why")
    assert (end.verdict.code, end.verdict.state) == (1, "failed")


def test_every_kind_of_end_is_in_the_table():
    assert {*PROSPECTS} == {*EndKind}
    assert {kind for kind in EndKind if PROSPECTS[kind].again} == {EndKind.KILLED, EndKind.CRASHED, EndKind.LOST}


def test_ends_that_are_none_of_a_failure_stay_as_they_are():
    for verdict in (
        LaunchVerdict(0, "finished", kind=EndKind.FINISHED),
        LaunchVerdict(75, "preempted", "saved", kind=EndKind.PREEMPTED),
        INTERRUPTED,
    ):
        assert story(ended(0, 57, 40, verdict)) == Enough(verdict)


def test_a_job_that_was_asked_to_go_and_dies_can_be_gone_on_with_elsewhere():
    going = msgspec.structs.replace(ended(0, 57, 40), to_go=True)
    end = story(going)
    assert isinstance(end, Enough)
    assert (end.verdict.code, end.verdict.state, end.verdict.kind) == (75, "preempted", EndKind.PREEMPTED)
    assert "worker 0 was killed" in end.verdict.reason
    wrong = msgspec.structs.replace(ended(0, 0, 0, CRASHED), to_go=True)
    end = story(wrong)
    assert isinstance(end, Enough)
    assert end.verdict.code == 1, "what is wrong is wrong elsewhere too"
