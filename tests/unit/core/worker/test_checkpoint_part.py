"""What a worker makes of the word of a checkpoint: it copies after just that step, or says that it cannot."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from edl.core.worker.checkpoint_part import CheckpointPart
from edl.core.worker.lease_buffer import LeaseBuffer
from edl.core.worker.next_move import NEVER, attention_step
from edl.core.worker.worker_inputs import (
    Agree,
    AwaitOrders,
    BatchBegins,
    BatchEnded,
    BatchVoid,
    Command,
    CopyFailed,
    CopyRest,
    CopyState,
    CopyTaken,
    EndScript,
    LeaveWanted,
    OrdersHeard,
    OrdersRead,
    RecordStep,
    RingFormed,
    StateCopied,
    TakeCopy,
    TellDaemon,
    VotesHeard,
)
from edl.core.worker.worker_machine import WorkerMachine
from edl.core.worker.worker_states import TrainerState
from edl.protocol.assignment import Assignment, Orders, Place, Verdict
from edl.protocol.checkpoint_record import Hold, Save
from edl.protocol.trainer_messages import CopiedPart

STANDS = Save(1, 1, 3, part=0, parts=2, path="/d/j/0001-000001-000000000003", stands=True)
SAVE = Save(number=1, generation=1, after_step=3, part=0, parts=2, path="/d/j/0001-000001-000000000003")


class Worker:
    """In its first ring of two, with data of its own."""

    def __init__(self) -> None:
        self.count = SimpleNamespace(step=0, usual_until=0)
        self.machine = WorkerMachine(LeaseBuffer(), self.count)
        self.newest = Orders(1, 0, Verdict.STAY, "", 0, 0, 0, False, None, ())
        self.enters(1, after_step=0)
        self.machine.handle(BatchBegins())
        self.machine.handle(StateCopied())

    def orders(self, **changes: Any) -> Orders:
        self.newest = msgspec.structs.replace(self.newest, version=self.newest.version + 1, **changes)
        return self.newest

    def enters(self, generation: int, after_step: int | None, **changes: Any) -> list[Command]:
        seat = Assignment(Place(generation, 0, 2, "w"), after_step, newcomers=0)
        commands = self.machine.handle(OrdersRead(self.orders(assignment=seat, **changes)))
        said = list(commands)
        commands = self.machine.handle(RingFormed())
        if commands and isinstance(commands[0], Agree):
            commands = self.machine.handle(VotesHeard(commands[0].vote))
        if any(isinstance(command, CopyRest | CopyState) for command in commands):
            commands = self.machine.handle(StateCopied())
        return [*said, *commands]

    def hears(self, **changes: Any) -> list[Command]:
        return self.machine.handle(OrdersHeard(self.orders(**changes)))

    def looks(self, **changes: Any) -> list[Command]:
        return self.machine.handle(OrdersRead(self.orders(**changes)))

    def ends_batch(self) -> list[Command]:
        """As the trainer does it: it looks at its orders where the daemon asks for attention."""
        attention = self.count.step + 1 >= attention_step(self.machine.generation, self.newest)
        commands = self.machine.handle(BatchEnded(attention))
        return self.machine.handle(OrdersRead(self.newest)) if attention else commands


def copies(commands: Iterable[Command]) -> list[Save]:
    return [command.save for command in commands if isinstance(command, TakeCopy)]


def test_it_copies_at_the_end_of_the_announced_step_once() -> None:
    worker = Worker()
    assert not worker.hears(save=SAVE)
    found = [copies(worker.ends_batch()) for _ in range(5)]
    assert found == [[], [], [SAVE], [], []]


def test_it_copies_before_it_leaves_its_ring_after_the_same_step() -> None:
    worker = Worker()
    seat = Assignment(Place(2, 0, 2, "w"), after_step=3, newcomers=0)
    worker.hears(save=SAVE, assignment=seat)
    worker.ends_batch(), worker.ends_batch()
    commands = worker.ends_batch()
    assert isinstance(commands[0], TakeCopy)
    assert len(commands) > 1


def test_a_late_word_is_told_and_costs_no_mini_batch() -> None:
    worker = Worker()
    for _ in range(4):
        worker.ends_batch()
    commands = worker.hears(save=SAVE)
    assert commands == [TellDaemon()]
    assert worker.machine.status.copied == CopiedPart(1, failure="the word came after its step")
    assert not worker.hears()


def test_a_word_that_comes_in_the_next_mini_batch_is_late() -> None:
    worker = Worker()
    for _ in range(3):
        worker.ends_batch()
    commands = worker.hears(save=SAVE)  # what is not learned may have changed by then
    assert commands == [TellDaemon()]
    assert worker.machine.status.copied == CopiedPart(1, failure="the word came after its step")
    assert not copies(worker.ends_batch())


def test_where_its_job_stands_it_copies_beside_the_mini_batch_that_it_works_on() -> None:
    worker = Worker()
    for _ in range(3):
        worker.ends_batch()
    commands = worker.hears(save=STANDS)
    assert commands == [TakeCopy(STANDS, beside=True)]
    assert not worker.hears()  # once
    assert worker.machine.handle(CopyFailed(1, "its update had begun")) == [TellDaemon()]
    assert worker.machine.status.copied == CopiedPart(1, failure="its update had begun")


def test_where_it_comes_to_that_step_it_copies_there() -> None:
    worker = Worker()
    worker.ends_batch()
    assert not worker.hears(save=STANDS)
    worker.ends_batch()
    assert copies(worker.ends_batch()) == [STANDS]


def test_it_does_not_copy_what_a_void_mini_batch_has_begun_to_change() -> None:
    worker = Worker()
    for _ in range(3):
        worker.ends_batch()
    worker.machine.handle(BatchVoid("connection reset by peer"))
    assert not worker.hears(save=STANDS)


def test_in_a_job_that_is_to_go_it_waits_after_the_step_that_is_copied() -> None:
    worker = Worker()
    worker.hears(save=SAVE, hold=Hold(1, 3))
    worker.ends_batch(), worker.ends_batch()
    assert worker.ends_batch() == [TakeCopy(SAVE), AwaitOrders()]
    assert worker.looks(save=None) == [AwaitOrders()]  # all parts are durable, and the manifest is not
    assert worker.looks(verdict=Verdict.STOP, reason="step 3 is saved", resumable=True)[-1] == EndScript(
        "step 3 is saved", resumable=True
    )


def test_it_goes_on_once_that_comes_to_nothing() -> None:
    worker = Worker()
    worker.hears(save=SAVE, hold=Hold(1, 3))
    for _ in range(3):
        worker.ends_batch()
    assert worker.machine.state is TrainerState.BETWEEN
    assert not worker.looks(save=None, hold=None)
    assert worker.machine.state is TrainerState.TRAINING


def test_it_waits_for_no_ring_but_its_own() -> None:
    worker = Worker()
    worker.hears(save=SAVE, hold=Hold(1, 3))
    for _ in range(3):
        worker.ends_batch()
    commands = worker.enters(2, after_step=None)
    assert AwaitOrders() not in commands
    assert worker.machine.state is TrainerState.TRAINING
    assert attention_step(2, worker.newest, copied=1) == NEVER


def test_attention_is_asked_for_where_it_is_to_wait() -> None:
    orders = Orders(1, 1, Verdict.STAY, "", 0, 0, 0, False, None, (), hold=Hold(1, 3))
    assert [attention_step(ring, orders, copied=1) for ring in (1, 2)] == [3, NEVER]


def test_what_a_void_mini_batch_may_have_changed_is_not_copied() -> None:
    worker = Worker()
    for _ in range(3):
        worker.ends_batch()
    worker.machine.handle(BatchVoid("connection reset by peer"))
    worker.hears(save=SAVE)
    worker.machine.handle(BatchEnded())
    assert not copies(worker.machine.handle(OrdersRead(worker.newest)))
    worker.enters(2, after_step=None)
    assert TellDaemon() in worker.hears()
    assert worker.machine.status.copied == CopiedPart(1, failure="its ring was over before that step")


def test_a_job_that_is_over_is_not_copied() -> None:
    worker = Worker()
    worker.hears(save=SAVE, verdict=Verdict.STOP)
    worker.count.step = 2
    worker.machine.handle(BatchEnded(attention=True))
    assert not copies(worker.machine.handle(OrdersRead(worker.newest)))


@pytest.mark.parametrize("outcome", [CopyTaken(1, ("part",), 2.5), CopyFailed(1, "no memory is left")])
def test_its_daemon_hears_what_came_of_it_and_so_does_another_one(outcome: CopyTaken | CopyFailed) -> None:
    worker = Worker()
    worker.hears(save=SAVE)
    for _ in range(3):
        worker.ends_batch()
    assert worker.machine.status.copied == CopiedPart()
    assert worker.machine.handle(outcome) == [TellDaemon()]
    taken = isinstance(outcome, CopyTaken)
    assert worker.machine.status.copied == (
        CopiedPart(1, ("part",), 2.5) if taken else CopiedPart(1, failure="no memory is left")
    )
    assert not worker.machine.handle(outcome)


def test_what_came_of_one_that_another_has_followed_is_not_told() -> None:
    worker = Worker()
    worker.hears(save=SAVE)
    for _ in range(3):
        worker.ends_batch()
    worker.hears(save=msgspec.structs.replace(SAVE, number=2))
    worker.ends_batch()
    missed = CopiedPart(2, failure="the word came after its step")
    assert worker.machine.status.copied == missed
    assert not worker.machine.handle(CopyTaken(1))
    assert worker.machine.status.copied == missed


def test_while_another_is_copied_the_one_before_stays_what_is_told() -> None:
    worker = Worker()
    worker.hears(save=SAVE)
    for _ in range(3):
        worker.ends_batch()
    worker.machine.handle(CopyTaken(1, ("part",)))
    worker.hears(save=msgspec.structs.replace(SAVE, number=2, after_step=4))
    assert copies(worker.ends_batch())
    worker.machine.handle(LeaveWanted())
    assert worker.machine.status.copied == CopiedPart(1, ("part",))
    worker.machine.handle(CopyTaken(2, ("part",)))
    assert worker.machine.status.copied == CopiedPart(2, ("part",))


def test_attention_is_asked_for_until_the_trainer_is_through_with_it() -> None:
    orders = Orders(1, 1, Verdict.STAY, "", 0, 0, 0, False, None, (), save=SAVE)
    assert attention_step(1, orders) == 3
    assert attention_step(1, orders, copied=1) == NEVER
    assert attention_step(0, orders) == NEVER  # it is not in that ring yet


def test_what_a_script_asks_for_is_told_once_a_step() -> None:
    copying = CheckpointPart()
    assert (copying.want(7), copying.wanted) == ([TellDaemon()], 7)
    assert copying.want(7) == []
    assert copying.want(6) == []  # a mini-batch that came again
    assert (copying.want(8), copying.wanted) == ([TellDaemon()], 8)


def test_a_step_that_ends_once_its_job_is_over_is_none() -> None:
    """Nothing of it is saved: the next life makes it."""
    worker = Worker()
    worker.ends_batch(), worker.ends_batch()
    worker.hears(verdict=Verdict.STOP, reason="it had trained nothing", resumable=True)
    assert not any(isinstance(command, RecordStep) for command in worker.ends_batch())
    assert worker.machine.step == 2
