"""How a job's tally grows."""

from __future__ import annotations

import msgspec
import pytest
from machine_job import Job

from edl import facts
from edl.core.job.counters import advanced, certain, counted, growth_of
from edl.protocol.leader_messages import Phase
from edl.protocol.record import JobState
from edl.protocol.tally import Doing, Growth, Tally

TRAINS = Tally(at=100.0, doing=Doing.TRAINING)


def scaled(before: int, after: int, pause_ms: float | None, *, forced: bool = False) -> facts.Scaled:
    return facts.Scaled(before=before, after=after, pause_ms=pause_ms, forced=forced)


def test_time_is_good_while_the_job_trains_and_bad_by_its_cause_else() -> None:
    assert advanced(TRAINS, 107.0).good_s == 7.0
    for doing in (Doing.STARTING, Doing.FAULT):
        waits = advanced(msgspec.structs.replace(TRAINS, doing=doing), 107.0)
        assert (waits.good_s, waits.bad_s) == (0.0, {doing.value: 7.0})
    over = advanced(msgspec.structs.replace(TRAINS, doing=Doing.OVER), 107.0)
    assert (over.good_s, over.bad_s, over.at) == (0.0, {}, 107.0)


def test_a_clock_that_goes_back_counts_nothing() -> None:
    assert advanced(TRAINS, 90.0) == TRAINS


def test_a_pause_is_paid_for_by_what_comes_next_and_nothing_shrinks() -> None:
    told = counted(TRAINS, scaled(2, 3, 400.0), 101.0)
    assert (told.good_s, told.bad_s, told.owed_s, told.pause_s) == (1.0, {"switch": 0.4}, 0.4, 0.4)
    assert advanced(told, 101.3).good_s == 1.0
    later = advanced(told, 103.0)
    assert later.good_s == pytest.approx(2.6)
    assert later.good_s + later.bad_s["switch"] == pytest.approx(3.0)


def test_what_is_served_while_it_is_written_is_there_whether_or_not_it_comes_to_be_written() -> None:
    decided = msgspec.structs.replace(advanced(TRAINS, 105.0), doing=Doing.FAULT)
    assert certain(TRAINS, TRAINS, 107.0).good_s == 7.0
    served = certain(TRAINS, decided, 107.0)
    assert (served.good_s, served.bad_s) == (5.0, {})
    assert served.good_s <= min(advanced(TRAINS, 107.0).good_s, advanced(decided, 107.0).good_s)


def test_a_broken_ring_costs_the_time_until_the_next_one_trains_and_not_its_pause_too() -> None:
    told = counted(TRAINS, scaled(3, 2, 900.0, forced=True), 101.0)
    assert (told.scalings, told.pause_s, told.bad_s, told.owed_s) == ({"fault": 1}, 0.9, {}, 0.0)


@pytest.mark.parametrize(
    ("before", "after", "forced", "growth"),
    [
        (2, 3, False, Growth.GROW),
        (3, 2, False, Growth.SHRINK),
        (2, 2, False, Growth.REPLACE),
        (2, 3, True, Growth.FAULT),
    ],
)
def test_what_a_change_was_for(before: int, after: int, forced: bool, growth: Growth) -> None:
    assert growth_of(before, after, forced=forced) is growth


def test_a_checkpoint_is_counted_with_what_it_cost() -> None:
    fact = facts.CheckpointDurable(number=1, path="/c", bytes=1000, seconds=2.0, stall_ms=250.0)
    told = counted(counted(TRAINS, fact, 105.0), facts.CheckpointFailed(number=2, reason="full"), 106.0)
    assert (told.checkpoints, told.checkpoints_failed, told.checkpoint_bytes) == (1, 1, 1000)
    assert (told.checkpoint_stall_s, told.checkpointed_at, told.bad_s) == (0.25, 105.0, {"checkpoint": 0.25})
    assert told.good_s == pytest.approx(5.75)


def test_what_is_only_counted() -> None:
    told = TRAINS
    for fact in (
        facts.WorkerUnfit(worker="w1", host="h", reason="r"),
        facts.BatchVoided(worker="w1", voided_step=3, reason="r"),
        facts.PolicyDecided(size=2, reason="r", act=True),
        facts.WorkerLost(worker="w1", was="training", reason="r", cause="died"),
        facts.WorkerLost(worker="w2", was="training", reason="r", cause="died"),
        facts.EpochEnded(epoch=0),
    ):
        told = counted(told, fact, 100.0)
    assert (told.unfit, told.voided, told.decisions, told.lost) == (1, 1, 1, {"died": 2})


def test_a_machine_keeps_the_tally_in_its_record() -> None:
    """From the first worker on: it starts, trains, breaks, trains again, and is over."""
    job = Job(np=2)
    job.now = 1000.0
    job.join("w0")
    job.join("w1")
    job.pass_time(5.0)
    assert job.machine.record.tally.doing is Doing.STARTING
    for worker in ("w0", "w1"):
        job.see(worker, Phase.TRAINING, 1, 0)
    assert job.machine.record.tally.doing is Doing.TRAINING
    assert job.machine.record.tally.bad_s["starting"] == pytest.approx(5.0, abs=0.1)
    job.pass_time(10.0)
    job.see("w0", Phase.TRAINING, 1, 7)
    job.see("w1", Phase.FAILED, 1, 7, reason="its process ended without a word: it was killed, or it crashed")
    tally = job.machine.record.tally
    assert (tally.doing, tally.lost) == (Doing.FAULT, {"died": 1})
    assert tally.good_s == pytest.approx(10.0, abs=0.1)
    job.pass_time(3.0)
    plan = job.machine.record.plan
    assert plan is not None
    job.see("w0", Phase.TRAINING, plan.generation, 7)
    tally = job.machine.record.tally
    assert (tally.doing, tally.scalings) == (Doing.TRAINING, {"fault": 1})
    assert tally.bad_s["fault"] == pytest.approx(3.0, abs=0.1)
    job.see("w0", Phase.DONE, plan.generation, 9)
    assert job.machine.record.state is JobState.FINISHED
    assert job.machine.record.tally.doing is Doing.OVER


def test_workers_that_were_asked_for_again_are_counted_again() -> None:
    asked = (facts.SizeAsked(size=2, before=3), facts.SizeAsked(size=3, before=2), facts.SizeAsked(size=5, before=3))
    tally = TRAINS
    for fact in asked:
        tally = counted(tally, fact, 100.0)
    assert tally.asked_more == 3
