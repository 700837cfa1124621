"""A ring begins as its plan says; a newcomer's state comes beside its first step: what each does, and what it tells."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest

from edl.core.worker.agreement import Beginning, Entering, Vote, begins, says
from edl.core.worker.lease_buffer import LeaseBuffer
from edl.core.worker.worker_inputs import (
    AdoptRing,
    Agree,
    BatchEnded,
    BatchVoid,
    Command,
    CopyRest,
    CopyState,
    FetchPortion,
    FetchState,
    OrdersRead,
    RecordStep,
    RingFailed,
    RingFormed,
    RingPrepared,
    SendState,
    StateComes,
    StateCopied,
    StateMeasured,
    StateNeeded,
    StatePortion,
    StatesEqual,
    TellDaemon,
    VotesHeard,
)
from edl.core.worker.worker_machine import WorkerMachine
from edl.core.worker.worker_states import TrainerState
from edl.errors import InvalidTransition, RingBroken
from edl.protocol.assignment import Assignment, Orders, Place, Summons, Verdict
from edl.protocol.leader_messages import Phase

OFFER = 0x7F0000019C40


def planned(rank: int, size: int = 3, newcomers: int = 1, *, beside: int = 1) -> Assignment:
    place = Place(2, rank, size, f"w{rank}")
    return Assignment(place, 9, newcomers, follows=1, prepared=True, beside=beside, offer=OFFER if beside else 0)


@pytest.mark.parametrize(("rank", "step"), [(0, 9), (1, 9), (2, 0)], ids=["rank 0", "a survivor", "the newcomer"])
def test_the_plan_says_how_it_begins(rank: int, step: int) -> None:
    entering = Entering(planned(rank), int(step > 0), step, has_state=step > 0)
    assert says(entering) is None
    assert begins(entering, None) == Beginning(9, 0, current=step > 0, offer=OFFER)


@pytest.mark.parametrize("rank", [0, 1])
def test_where_none_comes_the_plan_says_so_too(rank: int) -> None:
    entering = Entering(planned(rank, size=2, newcomers=0, beside=0), 1, 9, has_state=True)
    assert says(entering) is None
    assert begins(entering, None) == Beginning(9, 0, current=True)


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (planned(0), True),
        (planned(0, newcomers=0, beside=0), True),
        (planned(0, beside=0), False),
        (msgspec.structs.replace(planned(0, newcomers=0, beside=0), prepared=False), False),
        (msgspec.structs.replace(planned(0, newcomers=0, beside=0), after_step=None), False),
        (msgspec.structs.replace(planned(0, newcomers=0, beside=0), after_step=0), False),
    ],
    ids=["beside", "none comes", "a newcomer gets it before", "formed in line", "at once", "none has trained"],
)
def test_members_ask_each_other_nothing_where_all_know(plan: Assignment, expected: bool) -> None:
    assert plan.begins_as_planned is expected
    assert (says(Entering(plan, 1, 9, has_state=True)) is None) is expected


@pytest.mark.parametrize(
    ("generation", "step", "has_state", "voided"),
    [(1, 8, True, False), (1, 10, True, False), (1, 9, False, False), (1, 9, True, True)],
    ids=["it is behind", "it is ahead", "it has half a state", "the others left it alone in a mini-batch"],
)
@pytest.mark.parametrize(("beside", "newcomers"), [(1, 1), (0, 0), (0, 1)])
def test_a_member_that_is_not_as_planned_does_not_begin(
    generation: int, step: int, has_state: bool, voided: bool, beside: int, newcomers: int
) -> None:
    plan = planned(1, newcomers=newcomers, beside=beside)
    entering = Entering(plan, generation, step, has_state=has_state, voided=voided)
    if plan.begins_as_planned:
        with pytest.raises(RingBroken, match="not in the state of the planned step"):
            says(entering)
    else:
        vote = says(entering)
        assert vote is not None and vote.doubts, "where all ask each other it says so"


class Worker:
    """In ring 1 after step 9, or with its rehearsal behind it; ring 2 stands beside, and is adopted."""

    def __init__(self, rank: int, size: int = 3, over: int = 1, newcomers: int = 1) -> None:
        new = rank >= size - newcomers
        self.machine = WorkerMachine(LeaseBuffer(), SimpleNamespace(step=0 if new else 9, usual_until=0))
        self.machine.rehearsed, self.machine.generation = new, 0 if new else 1
        self.machine.state = here = TrainerState.WAITING if new else TrainerState.BETWEEN
        self.version = 0
        plan = planned(rank, size, newcomers, beside=over if newcomers else 0)
        self.hear(summons=Summons(1, (), plan.place))
        self.machine.handle(RingPrepared(2))
        self.machine.state = here
        assert self.hear(assignment=plan) == [AdoptRing(plan)]

    def hear(self, **changes: object) -> list[Command]:
        self.version += 1
        now = Orders(1, self.version, Verdict.STAY, "", 0, 0, 0, False, None, ())
        return self.machine.handle(OrdersRead(msgspec.structs.replace(now, **changes)))

    def come(self) -> list[Command]:
        """It has come to ring 2, after step 9, and waits for no other member."""
        return self.machine.handle(RingFormed())


SITS = (Phase.TRAINING, 2, 9)
AWAITS = (Phase.READY, 0, 9)  # the leader takes it for a newcomer meanwhile, but one that has leases


def told(worker: Worker, commands: list[Command]) -> tuple[Phase, int, int | None]:
    assert TellDaemon() in commands
    status = worker.machine.status
    return status.phase, status.generation, status.began


def test_the_root_sends_and_another_survivor_only_sits() -> None:
    root, other = Worker(0), Worker(1)
    first, *rest = root.come()
    assert first == SendState(1)
    assert told(root, rest) == SITS
    commands = other.come()
    assert told(other, commands) == SITS
    assert not any(isinstance(one, SendState | FetchState | CopyState) for one in commands)
    for machine in (root.machine, other.machine):
        assert machine.has_state
        assert not machine.model.is_new
        assert machine.unusual.check_at == 10, "they are compared once the newcomer has its state"


@pytest.mark.parametrize("rank", [0, 1])
def test_where_none_comes_each_survivor_only_sits(rank: int) -> None:
    worker = Worker(rank, size=2, newcomers=0)
    commands = worker.come()
    assert told(worker, commands) == SITS
    assert not any(isinstance(one, SendState | CopyRest | CopyState) for one in commands)
    assert (worker.machine.generation, worker.machine.step) == (2, 9)
    assert worker.machine.state is TrainerState.TRAINING


def test_a_newcomer_counts_once_its_state_has_come() -> None:
    newcomer = Worker(2)
    machine = newcomer.machine
    assert newcomer.come() == [FetchState(0, OFFER)]
    assert told(newcomer, machine.handle(StateComes())) == AWAITS
    assert machine.state is TrainerState.TRAINING
    assert not machine.has_state
    assert machine.status.prepared == (2, "")
    assert told(newcomer, machine.handle(StateCopied())) == SITS
    assert machine.has_state
    machine.handle(BatchEnded())
    assert machine.step == 10
    assert machine.model.is_new, "it may have got another state than the others had after that step"
    machine.handle(StatesEqual())
    assert machine.model.is_new, "its script may do something else there in some steps"
    machine.count.step = machine.model.joined + 64
    machine.handle(StatesEqual())
    assert not machine.model.is_new


def test_over_several_steps_a_portion_goes_beside_each() -> None:
    root, other, newcomer = Worker(0, over=3), Worker(1, over=3), Worker(2, over=3)
    portions = [StatePortion(number, number + 1, 3) for number in range(3)]
    assert root.come()[0] == SendState(1, portions[0])
    other.come()
    assert newcomer.come() == [FetchState(0, OFFER, portions[0])]
    assert told(newcomer, newcomer.machine.handle(StateComes())) == AWAITS
    for step, portion in enumerate(portions[1:], 10):
        for one in (root, newcomer):
            assert one.machine.count.usual_until == 0, "the end of this mini-batch is to be heard of"
        assert newcomer.machine.handle(StateCopied()) == []
        assert newcomer.machine.handle(BatchEnded()) == [FetchPortion(portion)]
        assert root.machine.handle(BatchEnded()) == [RecordStep(2, step), SendState(1, portion)]
        assert newcomer.machine.step == step
        assert not newcomer.machine.has_state
        assert newcomer.machine.model.is_awaited
        with pytest.raises(InvalidTransition, match="no state to be applied to"):
            newcomer.machine.handle(BatchEnded())
    assert told(newcomer, newcomer.machine.handle(StateCopied())) == SITS
    assert newcomer.machine.has_state
    for one in (root, newcomer):
        assert one.machine.handle(BatchEnded()) == [RecordStep(2, 12)]
    assert {one.machine.unusual.check_at for one in (root, other, newcomer)} == {12}


def test_where_all_of_the_model_is_needed_the_rest_follows_at_once() -> None:
    root, other, newcomer = Worker(0, over=5), Worker(1, over=5), Worker(2, over=5)
    for one in (root, other, newcomer):
        one.come()
    newcomer.machine.handle(StateComes())
    newcomer.machine.handle(StateCopied())
    rest = StatePortion(1, 5, 5)
    assert root.machine.handle(StateNeeded()) == [SendState(1, rest)]
    assert newcomer.machine.handle(StateNeeded()) == [FetchPortion(rest)]
    assert other.machine.handle(StateNeeded()) == []
    assert told(newcomer, newcomer.machine.handle(StateCopied())) == SITS
    for one in (root, newcomer):
        assert one.machine.handle(StateNeeded()) == []
        assert one.machine.handle(BatchEnded()) == [RecordStep(2, 10)]


def test_a_ring_that_breaks_ends_what_goes_in_portions() -> None:
    root = Worker(0, over=3)
    root.come()
    root.machine.handle(BatchVoid("a peer is gone"))
    root.machine.handle(BatchEnded())
    again = msgspec.structs.replace(planned(0), place=Place(3, 0, 2, "w0"), after_step=None, prepared=False)
    root.hear(assignment=again)
    assert not root.machine.model.portions.follow


def test_the_daemon_hears_how_large_the_state_is_and_of_each_change() -> None:
    machine = Worker(0).machine
    assert machine.handle(StateMeasured(5)) == [TellDaemon()]
    assert machine.handle(StateMeasured(5)) == []
    assert machine.status.state_bytes == 5


def test_a_newcomer_without_a_state_makes_no_step() -> None:
    newcomer = Worker(2)
    newcomer.come()
    newcomer.machine.handle(StateComes())
    with pytest.raises(InvalidTransition, match="no state to be applied to"):
        newcomer.machine.handle(BatchEnded())


def test_a_state_that_does_not_come_voids_the_step_of_the_newcomer() -> None:
    newcomer = Worker(2)
    machine = newcomer.machine
    newcomer.come()
    machine.handle(StateComes())
    machine.handle(BatchVoid("the connection was closed"))
    assert told(newcomer, machine.handle(BatchEnded())) == (Phase.BROKEN, 2, 9)
    assert machine.state is TrainerState.WAITING
    assert not machine.has_state, "it must become no other's"
    assert machine.step == 9


def test_one_that_cannot_be_fetched_fails_the_ring() -> None:
    newcomer = Worker(2)
    newcomer.come()
    assert told(newcomer, newcomer.machine.handle(RingFailed("refused"))) == (Phase.BROKEN, 2, None)
    assert not newcomer.machine.generation


def test_where_none_has_trained_a_state_that_never_came_is_none_that_is_lacked() -> None:
    """It goes on alone, with its own: that is the job's from then on, and others get it."""
    newcomer = Worker(2)
    machine = newcomer.machine
    newcomer.come()
    machine.handle(RingFailed("it was given up"))
    newcomer.hear(assignment=Assignment(Place(3, 0, 1, "w2"), None, 0))
    nothing = Vote(newest=0, behind=1, doubts=0, unbooted=0)
    assert newcomer.come() == [Agree(nothing)]
    machine.handle(VotesHeard(nothing))
    machine.handle(BatchEnded())
    assert machine.step == 1
    assert machine.has_state


def test_what_it_failed_in_before_counts_no_more() -> None:
    newcomer = Worker(2)
    newcomer.come()
    newcomer.machine.handle(RingFailed("a peer is gone"))
    again = msgspec.structs.replace(planned(2, newcomers=1), place=Place(3, 2, 3, "w2"))
    newcomer.hear(summons=Summons(2, (), again.place))
    newcomer.machine.handle(RingPrepared(3))
    newcomer.hear(assignment=again)
    newcomer.come()
    assert told(newcomer, newcomer.machine.handle(StateComes())) == AWAITS
    assert newcomer.machine.status.reason == ""
