"""A worker forms the next ring beside its own, adopts it at the switch, and keeps none that is not wanted."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest

from edl.core.worker.lease_buffer import LeaseBuffer
from edl.core.worker.worker_inputs import (
    AbortRings,
    AdoptRing,
    BatchEnded,
    Command,
    EnterRing,
    OrdersHeard,
    OrdersRead,
    PrepareRing,
    ReleaseRing,
    RingFormed,
    RingNotPrepared,
    RingPrepared,
    ScriptEnded,
    TellDaemon,
)
from edl.core.worker.worker_machine import WorkerMachine
from edl.core.worker.worker_states import TrainerState
from edl.protocol.assignment import Assignment, Orders, Place, Summons, Verdict
from edl.protocol.leader_messages import Phase

NOW = Orders(1, 1, Verdict.STAY, "", 0, 0, 0, False, None, ())


class Worker:
    """One that trains in ring 1, after step 5."""

    def __init__(self) -> None:
        self.machine = WorkerMachine(LeaseBuffer(), SimpleNamespace(step=5, usual_until=0))
        self.machine.generation, self.machine.state = 1, TrainerState.TRAINING
        self.version = 1

    def hears(self, **changes: object) -> list[Command]:
        self.version += 1
        return self.machine.handle(OrdersHeard(msgspec.structs.replace(NOW, version=self.version, **changes)))

    def prepares(self, generation: int = 2) -> list[Command]:
        return self.hears(summons=called(generation))

    def ends_step(self, assignment: Assignment) -> list[Command]:
        self.hears(assignment=assignment)
        self.machine.state = TrainerState.BETWEEN
        return self.machine.handle(OrdersRead(self.machine.orders))


def called(generation: int) -> Summons:
    return Summons(7, (), Place(generation, 0, 2, "w"))


def seat(generation: int, *, prepared: bool = True, after_step: int | None = 5) -> Assignment:
    return Assignment(Place(generation, 0, 2, "w"), after_step, 0, follows=1, prepared=prepared)


def test_it_is_begun_once_and_told_of() -> None:
    worker = Worker()
    assert worker.prepares() == [PrepareRing(Place(2, 0, 2, "w"), all_prepare=True)]
    assert worker.prepares() == []
    assert worker.machine.handle(RingPrepared(2, offer=80)) == [TellDaemon()]
    assert (worker.machine.status.prepared, worker.machine.status.offer) == ((2, ""), 80)
    assert worker.machine.state is TrainerState.TRAINING


def test_at_the_switch_it_is_adopted() -> None:
    worker = Worker()
    worker.prepares()
    worker.machine.handle(RingPrepared(2))
    assert worker.hears(assignment=seat(2)) == []
    worker.machine.state = TrainerState.BETWEEN
    assert worker.machine.handle(OrdersRead(worker.machine.orders)) == [AdoptRing(seat(2))]
    assert worker.machine.assignment == seat(2)
    worker.machine.handle(RingFormed())
    assert worker.hears() == [], "nothing is left to let go of"


def test_one_that_does_not_stand_is_not_formed_again_by_one_member_alone() -> None:
    worker = Worker()
    worker.prepares()
    worker.machine.handle(RingPrepared(2))
    worker.machine.handle(RingNotPrepared(2, "a peer is gone"))
    commands = worker.ends_step(seat(2))
    assert not any(isinstance(one, EnterRing | AdoptRing) for one in commands)
    assert commands.count(TellDaemon()) == 1
    assert (worker.machine.status.phase, worker.machine.status.generation) == (Phase.BROKEN, 2)
    assert worker.machine.state is TrainerState.WAITING


@pytest.mark.parametrize("formed", [False, True])
@pytest.mark.parametrize(
    "then", ["called anew", "called off", "another ring is planned", "it leaves", "its script ends"]
)
def test_a_ring_that_is_not_wanted_any_more_is_let_go_of(formed: bool, then: str) -> None:
    worker = Worker()
    worker.prepares(3)
    if formed:
        worker.machine.handle(RingPrepared(3))
    match then:
        case "called anew":
            commands = worker.hears(summons=Summons(8, ()))
        case "called off":
            commands = worker.hears()
        case "another is planned":
            commands = worker.hears(assignment=seat(4, prepared=False, after_step=None))
            assert commands[1] == AbortRings(range(4))
        case "it leaves":
            commands = worker.hears(verdict=Verdict.LEAVE, leave_after_step=9)
        case _:
            commands = worker.machine.handle(ScriptEnded())
    assert commands[0] == ReleaseRing(3)
    assert worker.machine.handle(RingPrepared(3)) == [], "it came to stand too late"
    assert worker.machine.next_ring.generation == 0


def test_the_next_attempt_takes_the_place_of_the_one_before() -> None:
    worker = Worker()
    worker.prepares(2)
    assert worker.prepares(3) == [ReleaseRing(2), PrepareRing(Place(3, 0, 2, "w"), all_prepare=True)]
    assert worker.machine.handle(RingPrepared(2)) == [], "of the wrong one nothing is said"
    assert worker.machine.handle(RingPrepared(3)) == [TellDaemon()]
    assert worker.machine.status.prepared == (3, "")


def test_one_that_failed_is_not_tried_again_under_its_number() -> None:
    worker = Worker()
    worker.prepares()
    worker.machine.introduce(prepares=True, sends_state=False)
    assert worker.machine.handle(RingNotPrepared(2, "not all members came")) == [TellDaemon()]
    assert (worker.machine.status.prepared, worker.machine.status.prepares) == ((2, "not all members came"), True)
    assert worker.prepares() == []


def test_a_ring_that_fails_for_good_takes_the_ability_with_it() -> None:
    worker = Worker()
    worker.machine.introduce(prepares=True, sends_state=False)
    worker.prepares()
    worker.machine.handle(RingNotPrepared(2, "x" * 2_000_000, able=False))
    status = worker.machine.status
    assert (status.prepared, status.prepares) == ((2, "x" * 1997 + "..."), False)


def test_orders_that_come_after_newer_ones_begin_nothing() -> None:
    worker = Worker()
    worker.prepares(3)
    old = msgspec.structs.replace(NOW, summons=called(2))
    assert worker.machine.handle(OrdersHeard(old)) == []
    assert worker.machine.next_ring.generation == 3


def test_a_worker_that_ends_begins_nothing() -> None:
    worker = Worker()
    worker.machine.handle(ScriptEnded())
    assert worker.prepares() == []


# ------------------------------------------------------------------------------- in place of a ring that is broken


def able() -> Worker:
    worker = Worker()
    worker.machine.next_ring.able = True
    return worker


def forced(generation: int) -> Assignment:
    return seat(generation, prepared=False, after_step=None)


def comes(worker: Worker, reason: str = "connection reset by peer") -> list[Command]:
    """Its mini-batch was void, and is over."""
    worker.machine.void = reason
    worker.machine.handle(BatchEnded())
    return worker.machine.handle(OrdersRead(worker.machine.orders))


def test_in_place_of_a_broken_ring_one_is_begun_at_once_and_nothing_is_told_of_it() -> None:
    worker = able()
    assert worker.hears(assignment=forced(2)) == [PrepareRing(forced(2).place, all_prepare=False), AbortRings(range(2))]
    assert worker.hears(assignment=forced(2)) == [AbortRings(range(2))]
    assert worker.machine.handle(RingPrepared(2)) == []
    assert worker.machine.status.prepared == (0, "")
    assert comes(worker) == [EnterRing(forced(2), cut=True, begun=True)]


def test_a_worker_that_comes_before_it_stands_waits_for_it() -> None:
    worker = able()
    worker.hears(assignment=forced(2))
    assert comes(worker) == [EnterRing(forced(2), cut=True, begun=True)]
    assert worker.machine.handle(RingPrepared(2)) == []  # what its thread says, the one that waits hears by itself


def test_one_that_has_failed_is_not_formed_again_and_the_next_one_is_formed_in_line() -> None:
    worker = able()
    worker.hears(assignment=forced(2))
    assert worker.machine.handle(RingNotPrepared(2, "no route to host")) == []
    assert TellDaemon() in comes(worker)
    status = worker.machine.status
    assert (status.phase, status.generation, status.reason) == (Phase.BROKEN, 2, "no route to host")
    worker.machine.state = TrainerState.TRAINING  # in a ring that it did not tell of
    assert worker.hears(assignment=forced(3)) == [AbortRings(range(3))]
    worker.machine.next_ring.sit()
    assert PrepareRing(forced(4).place, all_prepare=False) in worker.hears(assignment=forced(4))


def test_another_death_begins_another_one() -> None:
    worker = able()
    worker.hears(assignment=forced(2))
    assert worker.hears(assignment=forced(3)) == [
        ReleaseRing(2),
        PrepareRing(forced(3).place, all_prepare=False),
        AbortRings(range(3)),
    ]


@pytest.mark.parametrize("assignment", [seat(2, prepared=False), forced(1)], ids=["planned", "its own"])
def test_nothing_else_is_begun(assignment: Assignment) -> None:
    assert not any(isinstance(one, PrepareRing) for one in able().hears(assignment=assignment))


@pytest.mark.parametrize("state", [TrainerState.BETWEEN, TrainerState.WAITING, TrainerState.ENTERING])
def test_a_worker_that_is_at_no_mini_batch_forms_it_in_line(state: TrainerState) -> None:
    worker = able()
    worker.machine.state = state
    assert not any(isinstance(one, PrepareRing) for one in worker.hears(assignment=forced(2)))


def test_a_worker_whose_rings_form_beside_no_other_forms_it_in_line() -> None:
    worker = Worker()
    worker.hears(assignment=forced(2))
    assert comes(worker) == [EnterRing(forced(2), cut=True)]
