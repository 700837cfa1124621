"""Who is asked for where a ring is broken."""

from __future__ import annotations

import msgspec
import pytest
from machine_job import LONG, Job

from edl.core.job import deadlines as rule
from edl.core.job.lead_times import LeadTimes
from edl.core.job.leader_inputs import NotListening, TookOver
from edl.core.job.leader_machine import JobMachine
from edl.protocol.leader_messages import AskStop, Phase, Register
from edl.protocol.record import Plan, WorkerState


@pytest.fixture
def job() -> Job:
    there = Job(np=3)
    for worker in ("w0", "w1", "w2"):
        there.join(worker)
    for worker in ("w0", "w1", "w2"):
        there.see(worker, Phase.TRAINING, 1, 5, data=LONG)
    return there


def plan(job: Job) -> Plan:
    assert job.machine.record.plan is not None
    return job.machine.record.plan


def state(job: Job, worker: str) -> WorkerState | None:
    return {member.identity.id: member.state for member in job.machine.record.members}.get(worker)


def broken_with_a_newcomer(job: Job, *tell: str, reason: str = "") -> Plan:
    """The next ring, with w3, fails these before it is on record."""
    job.join("w3")
    job.see("w3", Phase.READY, 0)
    first = plan(job)
    assert first.after_step
    for worker in tell:
        job.see(worker, Phase.BROKEN, first.generation, first.after_step, reason=reason)
    return first


def silent(job: Job) -> list[str]:
    return [identity.id for identity in job.machine.silent]


def refuse(job: Job, *workers: str) -> None:
    known = {member.identity.id: member.identity for member in job.machine.record.members}
    job.feed(NotListening(tuple(known[worker] for worker in workers)))


def test_in_a_ring_that_trains_none_is_asked_for(job: Job) -> None:
    assert silent(job) == []
    refuse(job, "w0")
    assert state(job, "w0") is not None


def test_who_has_not_told_of_the_break_is_asked_for(job: Job) -> None:
    job.see("w1", Phase.BROKEN, 1, 5)
    assert silent(job) == ["w0", "w2"]
    job.see("w2", Phase.BROKEN, 1, 5)
    assert silent(job) == ["w0"]
    refuse(job, "w0", "w1")
    assert (state(job, "w0"), plan(job).roster) == (None, ("w1", "w2"))
    assert silent(job) == []


def test_all_that_refuse_at_once_are_lost(job: Job) -> None:
    """Two workers in one container."""
    job.see("w1", Phase.BROKEN, 1, 5)
    refuse(job, "w0", "w2")
    assert plan(job).roster == ("w1",)


def test_a_loss_that_is_known_explains_the_break(job: Job) -> None:
    job.see("w1", Phase.FAILED, 1, 5, reason="it was killed")
    job.see("w0", Phase.BROKEN, 1, 5)
    assert silent(job) == []


def test_one_whose_next_daemon_registers_meanwhile_is_not_lost(job: Job) -> None:
    job.see("w1", Phase.BROKEN, 1, 5)
    job.see("w2", Phase.BROKEN, 1, 5)
    asked = job.machine.silent
    job.feed(Register(msgspec.structs.replace(asked[0], daemon_pid=7), 3, 1, 0))
    job.feed(NotListening(asked))
    assert state(job, "w0") is not None


def test_a_next_leader_asks_for_those_that_it_has_not_heard_of(job: Job) -> None:
    job.machine = JobMachine(job.machine.record, LeadTimes.of(10.0))
    job.feed(TookOver(frozenset({"w0", "w1", "w2"})))
    job.see("w1", Phase.BROKEN, 1, 5)
    job.see("w2", Phase.BROKEN, 1, 5)
    assert silent(job) == ["w0"]


def test_members_of_a_ring_that_breaks_as_it_forms_are_asked_for(job: Job) -> None:
    job.see("w2", Phase.FAILED, 1, 5, reason="it was killed")
    job.see("w0", Phase.BROKEN, 1, 5)
    job.see("w1", Phase.BROKEN, 1, 5)
    forms = plan(job).generation
    job.see("w1", Phase.BROKEN, forms, 5)
    assert silent(job) == ["w0"]


def test_members_of_a_ring_that_broke_before_it_was_on_record_are_asked_for(job: Job) -> None:
    """Also once another is planned, without the newcomer, which did not say of itself that it cannot come."""
    first = broken_with_a_newcomer(job, "w1", "w2", "w3")
    assert silent(job) == ["w0"]
    job.see("w3", Phase.FAILED, first.generation, reason="it was killed")
    assert silent(job) == []  # which explains the break
    anew = plan(job)
    assert (anew.generation > first.generation, anew.roster) == (True, ("w0", "w1", "w2"))


def test_members_of_a_ring_that_came_to_nothing_are_asked_for(job: Job) -> None:
    """It is planned anew as soon as the first has told."""
    first = broken_with_a_newcomer(job, "w3", "w1", "w2", reason="no route to host")
    assert plan(job).generation > first.generation
    assert silent(job) == ["w0"]
    refuse(job, "w0")
    assert state(job, "w0") is None


def test_where_most_have_not_told_yet_all_are_waited_for(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule, "MOST", 1)
    job.see("w1", Phase.BROKEN, 1, 5)
    assert silent(job) == []


def test_in_a_job_that_is_over_none_is_asked_for(job: Job) -> None:
    job.see("w1", Phase.BROKEN, 1, 5)
    assert silent(job)
    job.feed(AskStop("by its user"))
    assert silent(job) == []


def test_one_that_is_done_is_not_asked_for(job: Job) -> None:
    job.see("w0", Phase.DONE, 1, 5)
    job.see("w1", Phase.BROKEN, 1, 5)
    assert silent(job) == ["w2"]
