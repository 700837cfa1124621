"""A decision is durable before any worker hears of it, and is written once."""

from __future__ import annotations

import msgspec
import pytest

from edl.core.job.commit import (
    ALLOWED,
    BatchDecided,
    Commit,
    DeclareRest,
    ForgetSecret,
    Forgotten,
    GiveAnswer,
    Instruction,
    Publish,
    Writing,
    WritingState,
    Written,
    decide,
)
from edl.core.job.lead_times import LeadTimes
from edl.core.job.leader_inputs import Input, Reported, Tell
from edl.core.job.leader_machine import JobMachine, new_record
from edl.errors import InvalidTransition
from edl.facts import EpochEnded
from edl.protocol import leader_messages as say
from edl.protocol.leader_messages import AskScale, Register
from edl.protocol.record import Identity, JobState, Record, changed

FOUND = new_record("j", 0.0)
EVENT = Tell(EpochEnded(epoch=1), 0, 1)
ASKED = GiveAnswer("w0", say.Done())


def later(record: Record, **changes: object) -> Record:
    return changed(record, version=record.version + 1, **changes)


def decided(record: Record, *told: Tell, pressing: int = 0, at_rest: bool = True) -> BatchDecided[str]:
    return BatchDecided(record, told, (ASKED,), pressing, at_rest)


def begun() -> Writing[str]:
    """A leader that has taken over, and published what it has found."""
    writing: Writing[str] = Writing(FOUND, 7, 1)
    writing.handle(BatchDecided(FOUND, (), (), 0, at_rest=True))
    return writing


def kinds(said: list[Instruction[str]]) -> list[type]:
    return [type(one) for one in said]


def test_what_is_decided_is_told_once_it_is_durable() -> None:
    writing, record = begun(), later(FOUND)
    assert writing.handle(decided(record, EVENT)) == [DeclareRest(at_rest=False), Commit(record, (EVENT,), 7)]
    assert writing.record is FOUND
    publish, *others = writing.handle(Written(8))
    assert isinstance(publish, Publish) and publish.book.record is record is writing.record
    assert others == [DeclareRest(at_rest=True), ASKED]


def test_where_nothing_is_decided_nothing_is_written() -> None:
    assert begun().handle(decided(FOUND)) == [DeclareRest(at_rest=True), ASKED]


def test_events_alone_are_written_too_and_no_worker_needs_other_orders() -> None:
    writing = begun()
    assert writing.handle(decided(FOUND, EVENT))[1:] == [Commit(FOUND, (EVENT,), 7)]
    assert kinds(writing.handle(Written(8))) == [DeclareRest, GiveAnswer]


def test_a_new_leader_tells_what_it_has_found() -> None:
    writing: Writing[str] = Writing(FOUND, 7, 1)
    (commit,) = writing.handle(BatchDecided(FOUND, (EVENT,), (), 0, at_rest=False))
    assert isinstance(commit, Commit)
    publish, _ = writing.handle(Written(8))
    assert isinstance(publish, Publish) and publish.pressing


@pytest.mark.parametrize("pressing", [1, 2])
def test_who_waits_for_orders_is_woken_for_what_presses(pressing: int) -> None:
    writing = begun()
    writing.handle(decided(later(FOUND), pressing=pressing))
    publish = writing.handle(Written(8))[0]
    assert isinstance(publish, Publish) and publish.pressing is (pressing == 2)


def test_the_secret_is_gone_before_any_worker_hears_that_the_job_is_over() -> None:
    writing, over = begun(), later(FOUND, state=JobState.FINISHED)
    writing.handle(decided(over, EVENT))
    assert writing.handle(Written(8)) == [ForgetSecret()]
    assert kinds(writing.handle(Forgotten())) == [Publish, DeclareRest, GiveAnswer]
    assert writing.handle(decided(over)) == [DeclareRest(at_rest=True), ASKED]  # it is gone


def test_who_leads_a_job_that_is_over_removes_its_secret_first() -> None:
    over = msgspec.structs.replace(FOUND, state=JobState.FAILED)
    writing: Writing[str] = Writing(over, 7, 2)
    assert writing.handle(decided(over)) == [ForgetSecret()]


def test_one_batch_is_written_at_a_time() -> None:
    writing = begun()
    writing.handle(decided(later(FOUND)))
    with pytest.raises(InvalidTransition):
        writing.handle(decided(later(later(FOUND))))


def test_each_state_is_left_by_what_may_happen_in_it() -> None:
    assert set(ALLOWED) == set(WritingState)
    with pytest.raises(InvalidTransition):
        begun().handle(Written(8))


# ----------------------------------------------------------------------------------------------------- what it is fed


def test_of_a_batch_each_asker_has_its_own_answer_and_all_is_written_at_once() -> None:
    machine = JobMachine(FOUND, LeadTimes.of(5.0))
    joins = [Register(Identity(worker, "h", "127.0.0.1", 1, 2), 1, 1, 2) for worker in ("w0", "w1", "w2")]
    batch: list[tuple[Input, str | None]] = [
        *zip(joins, ("a", "b", "c"), strict=True),
        (AskScale(2), "d"),
        (AskScale(2), None),
    ]
    found = decide(machine, batch, 0.0)
    replies = {answer.asker: answer.reply for answer in found.answers}
    assert replies["a"] == replies["b"] == say.Done()
    assert isinstance(replies["c"], say.Rejected) and replies["d"] == say.Ack(2)
    assert found.record is machine.record and found.pressing == machine.pressing
    assert [tell.fact.kind for tell in found.told][:2] == ["job_started", "worker_joining"]


def test_a_report_that_was_overtaken_is_refused_as_stale() -> None:
    machine = JobMachine(FOUND, LeadTimes.of(5.0))
    seen = say.Observation(phase=say.Phase.TRAINING, generation=1, step=5, leases_of=1)
    older = msgspec.structs.replace(seen, step=4)
    joins = Register(Identity("w0", "h", "127.0.0.1", 1, 2), 1, 1, 2)
    found = decide(machine, [(joins, None), (Reported("w0", seen), "a"), (Reported("w0", older), "b")], 0.0)
    assert [(answer.asker, answer.stale) for answer in found.answers] == [("a", ""), ("b", "generation")]
