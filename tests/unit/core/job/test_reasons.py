"""Each switch says why it is made, and each leaver was told to for a reason (`edl events`)."""

from __future__ import annotations

from machine_job import SPEC, Job

from edl.core.job.lead_times import LeadTimes
from edl.core.job.leader_inputs import TookOver, Vanished
from edl.core.job.leader_machine import JobMachine
from edl.facts import SwitchPutOff, SwitchScheduled, WorkerLeft
from edl.protocol.data_nouns import DataSpec
from edl.protocol.leader_messages import AskScale, AskScaleIn, Phase


def running(np: int = 3, data: DataSpec = SPEC) -> Job:
    job = Job(np)
    for number in range(np):
        job.join(f"w{number}")
    for number in range(np):
        job.see(f"w{number}", Phase.TRAINING, generation=1, step=1, data=data)
    return job


def reason(job: Job) -> str:
    """Of the newest switch."""
    return [tell.fact for tell in job.told if isinstance(tell.fact, SwitchScheduled)][-1].why


def test_the_first_ring_stands_once_all_are_here() -> None:
    assert reason(running(2)) == "all 2 that were asked for are here"
    assert reason(running(1)) == "the first worker is here"


def test_a_newcomer_is_ready() -> None:
    job = running()
    job.join("w3")
    job.see("w3", Phase.READY, data=SPEC)
    assert reason(job) == "w3 is ready"


def test_leavers_leave_for_what_was_asked() -> None:
    job = running()
    job.feed(AskScale(1))
    assert reason(job) == "w1, w2 leave (a size of 1 was asked for)"
    job = running()
    job.feed(AskScaleIn(("w0",)))
    assert reason(job) == "w0 leaves (a request named it)"
    job = running()
    job.see("w1", Phase.TRAINING, generation=1, step=2, data=SPEC, leaving=True)
    assert reason(job) == "w1 leaves (it was stopped from outside)"
    assert job.machine.record.plan is not None and job.machine.record.plan.after_step is not None
    after_step = job.machine.record.plan.after_step
    job.see("w1", Phase.DONE, generation=1, step=after_step)
    (left,) = [tell.fact for tell in job.told if isinstance(tell.fact, WorkerLeft)]
    assert left.why == "it was stopped from outside"


def test_why_a_leaver_was_told_to_is_known_to_the_leader_that_told_it() -> None:
    job = running(4)
    job.unmet = {"w0"}
    job.feed(AskScale(2))
    job.unmet = set()
    job.machine = JobMachine(job.machine.record, LeadTimes.of(10.0))
    job.feed(TookOver(frozenset({"w0", "w1", "w2", "w3"})))
    for worker in ("w0", "w1", "w2", "w3"):
        job.see(worker, Phase.TRAINING, generation=1, step=1, data=SPEC)
    assert reason(job) == "w2, w3 leave"


def test_a_member_is_gone_or_the_ring_has_failed() -> None:
    job = running()
    job.feed(Vanished("w1", "gone"))
    assert reason(job) == "w1 is gone"
    job = running()
    for worker in ("w0", "w1", "w2"):
        job.see(worker, Phase.BROKEN, generation=1, step=1, data=SPEC, reason="reset by peer")
    assert reason(job) == "the ring of generation 1 has failed w0, w1, w2"


def test_of_many_only_some_are_named() -> None:
    job = running(7, DataSpec(total=10_000, epochs=1, batch=10))
    job.feed(AskScale(1))
    assert reason(job) == "w1, w2, w3, w4 and 2 others leave (a size of 1 was asked for)"


def test_a_plan_without_a_newcomer_that_failed_says_so() -> None:
    job = running()
    job.join("w3")
    job.see("w3", Phase.READY, data=SPEC)
    job.see("w3", Phase.FAILED, reason="killed", data=SPEC)
    plan = job.machine.record.plan
    assert plan is not None
    assert plan.after_step is not None
    assert reason(job) == "w3 is gone"


def test_a_switch_that_all_have_missed_says_who() -> None:
    job = running(2)
    job.join("w2")
    job.see("w2", Phase.READY, data=SPEC)
    plan = job.machine.record.plan
    assert plan is not None
    for worker in ("w0", "w1"):
        job.see(worker, Phase.TRAINING, generation=1, step=plan.after_step or 0, data=SPEC, missed=plan.generation)
    (told,) = [tell.fact for tell in job.told if isinstance(tell.fact, SwitchPutOff)]
    assert told.reason == "its word came too late for w0, w1"
