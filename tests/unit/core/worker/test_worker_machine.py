"""One worker's machine: what it makes of what happens to its trainer."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from edl.core.worker import worker_inputs as happens
from edl.core.worker.agreement import Vote, newness
from edl.core.worker.lease_buffer import LeaseBuffer
from edl.core.worker.worker_inputs import (
    AbortRings,
    Agree,
    AwaitOrders,
    BatchBegins,
    BatchEnded,
    BatchVoid,
    BootAlone,
    BreakIteration,
    Command,
    CopyRest,
    CopyState,
    DataWanted,
    EndScript,
    EnterRing,
    Fail,
    LeaveRing,
    OrdersHeard,
    OrdersRead,
    ReadOrders,
    RecordStep,
    RestartsExpected,
    RingFailed,
    RingFormed,
    ScriptEnded,
    ScriptFailed,
    SetWeight,
    StateCopied,
    StatesEqual,
    StepCovered,
    StillWaiting,
    TellDaemon,
    TrainStandIns,
    VotesHeard,
)
from edl.core.worker.worker_machine import WorkerMachine
from edl.core.worker.worker_states import LIVING, TRANSITIONS, StateChange, TrainerState, following
from edl.errors import InvalidTransition
from edl.protocol.assignment import Assignment, Orders, Place, Share, Verdict
from edl.protocol.checkpoint_record import Origin
from edl.protocol.data_nouns import DataSpec, Lease, Range, Totals
from edl.protocol.divergence_report import Checking, Fingerprint
from edl.protocol.leader_messages import Pause, Phase, ScriptPlace, Void
from edl.protocol.trainer_messages import TrainerStatus

SPEC = DataSpec(total=80, epochs=1, batch=4)
MINE = Lease(1, 0, 10, 4, (Range(0, 0, 40),))


STATE = (Fingerprint("weight", 7),)
PAUSE = Pause(1.0, 2.0, 3.0, 6.0)
PLACE = ScriptPlace(4, "train.py:12 (<module>)")
SILENT = Vote(newest=0, behind=-(10**9), doubts=0, unbooted=0)


def in_state_of(step: int, rank: int) -> Vote:
    return Vote(newness(step, rank, has_state=True), -step, doubts=0, unbooted=0)


class Worker:
    """A trainer whose shell is the test."""

    def __init__(self) -> None:
        self.count = SimpleNamespace(step=0, usual_until=0)
        self.machine = WorkerMachine(LeaseBuffer(), self.count, lambda: PAUSE)
        self.version = 0

    def orders(self, **changes: Any) -> Orders:
        self.version += 1
        known = Orders(1, self.version, Verdict.STAY, "", 0, 0, 0, False, None, ())
        return msgspec.structs.replace(known, **changes)

    def seat(self, generation: int, after_step: int | None, *, rank: int = 0, size: int = 2, **more: Any) -> Assignment:
        return Assignment(Place(generation, rank, size, "w"), after_step, **{"newcomers": 0, **more})

    def share(self, generation: int, after_step: int, **more: Any) -> Share:
        totals = (Totals(10, 8),)
        return msgspec.structs.replace(Share(generation, after_step, (MINE,), totals, 10, 1, last=False), **more)

    def reads(self, **changes: Any) -> list[Command]:
        return self.machine.handle(OrdersRead(self.orders(**changes)))

    def enters(self, assignment: Assignment, other: Vote = SILENT, **changes: Any) -> list[Command]:
        """The ring forms; `other` is what another member says. Returns what follows then."""
        self.reads(assignment=assignment, **changes)
        commands = self.machine.handle(RingFormed())
        if isinstance(commands[0], Agree):
            commands = self.machine.handle(VotesHeard(Vote(*map(max, commands[0].vote, other))))
        return commands

    def sits(self) -> Worker:
        """In the first ring, with data."""
        self.enters(self.seat(1, 0), shares=(self.share(1, 0),))
        self.machine.handle(DataWanted(SPEC))
        return self

    def trains(self, steps: int = 1) -> Worker:
        self.machine.handle(BatchBegins())
        self.machine.handle(StateCopied())
        for _ in range(steps):
            self.machine.handle(BatchEnded())
        return self

    @property
    def told(self) -> TrainerStatus:
        return self.machine.status


def ring_of(status: TrainerStatus) -> tuple[Phase, int, str]:
    return status.phase, status.generation, status.reason


# ----------------------------------------------------------------------------------------------------------- states


def test_each_state_can_be_come_to_and_left_for_the_end() -> None:
    assert set(TRANSITIONS.values()) | {TrainerState.COMING} == set(TrainerState)
    assert all(following(state, StateChange.ENDED) is TrainerState.OVER for state in TrainerState)
    assert all(following(state, StateChange.OBEYS) is TrainerState.LEAVING for state in LIVING)


def test_a_ring_is_entered_from_nowhere_but_between_two_mini_batches() -> None:
    enters = {state for state, change in TRANSITIONS if change is StateChange.ENTERS}
    assert enters == {
        TrainerState.COMING,
        TrainerState.WAITING,
        TrainerState.AWAITING_SHARE,
        TrainerState.BETWEEN,
    }
    forbidden = [pair for pair in product(TrainerState, StateChange) if pair not in TRANSITIONS]
    assert (TrainerState.TRAINING, StateChange.ENTERS) in forbidden
    for state, change in forbidden:
        with pytest.raises(InvalidTransition):
            following(state, change)


def test_what_cannot_be_says_what_came_before() -> None:
    worker = Worker()
    worker.reads()
    with pytest.raises(InvalidTransition) as told:
        worker.machine.handle(RingFormed())
    assert any("OrdersRead" in note for note in told.value.__notes__)


# ------------------------------------------------------------------------------------------------------ its first ring


def test_the_first_ring_asks_for_no_members_state_and_begins_from_rank_0s_model() -> None:
    worker = Worker()
    commands = worker.enters(worker.seat(1, 0, rank=1))
    assert TellDaemon() in commands
    assert ring_of(worker.told) == (Phase.TRAINING, 1, "")
    assert (worker.told.began, worker.told.leases_of, worker.told.booted) == (0, 0, True)
    assert (worker.machine.state, worker.count.usual_until) == (TrainerState.TRAINING, 0)
    assert worker.machine.handle(BatchBegins()) == [CopyState(0, is_root=False)]
    assert worker.machine.handle(BatchBegins()) == []


def test_who_is_not_needed_for_the_first_ring_boots_alone_and_rehearses() -> None:
    worker, machine = Worker(), None
    machine = worker.machine
    assert machine.handle(OrdersRead(None)) == [AwaitOrders()]
    assert worker.reads(boot_alone=True, local_rank=3) == [BootAlone(3), SetWeight(1, 1.0)]
    assert machine.state is TrainerState.BOOTING
    assert machine.handle(DataWanted(SPEC)) == [TellDaemon()]
    assert (worker.told.phase, worker.told.data, worker.told.booted) == (Phase.REHEARSING, SPEC, False)
    assert machine.handle(BatchEnded()) == [TellDaemon(), ReadOrders()]
    assert (worker.told.phase, worker.told.booted, worker.told.began) == (Phase.READY, True, None)
    assert (machine.state, machine.step, machine.booted) == (TrainerState.WAITING, 0, True)


def test_who_could_not_form_the_first_ring_waits_inside_init_again() -> None:
    worker = Worker()
    worker.reads(assignment=worker.seat(1, 0))
    commands = worker.machine.handle(RingFailed("no route"))
    assert commands == [LeaveRing(), TellDaemon(), AwaitOrders()]
    assert ring_of(worker.told) == (Phase.BROKEN, 1, "no route")
    assert worker.machine.state is TrainerState.COMING
    assert worker.reads(assignment=worker.seat(1, 0)) == [AwaitOrders()], "it has failed there"


def test_a_script_with_data_of_its_own_that_has_booted_alone_says_no_more_that_its_first_ring_failed() -> None:
    worker = Worker()
    worker.reads(assignment=worker.seat(1, 0))
    worker.machine.handle(RingFailed("a member is gone"))
    worker.reads(boot_alone=True)
    worker.machine.handle(BatchEnded())
    assert (*ring_of(worker.told), worker.told.booted) == (Phase.READY, 0, "", True)


def test_one_that_asks_for_data_says_so_neither() -> None:
    worker = Worker()
    worker.reads(assignment=worker.seat(1, 0))
    worker.machine.handle(RingFailed("a member is gone"))
    worker.reads(boot_alone=True)
    worker.machine.handle(DataWanted(SPEC))
    assert ring_of(worker.told) == (Phase.REHEARSING, 0, "")


def test_a_newcomer_says_at_its_end_that_it_is_one() -> None:
    worker = Worker()
    worker.reads(boot_alone=True)
    worker.machine.handle(BatchEnded())
    worker.enters(worker.seat(2, 5, newcomers=1), in_state_of(5, rank=1))
    worker.machine.handle(StateCopied())
    assert (worker.told.joined, worker.told.final) == (0, ())
    assert worker.machine.handle(ScriptEnded(STATE)) == [TellDaemon()]
    assert (worker.told.phase, worker.told.final, worker.told.joined) == (Phase.DONE, STATE, 5)


def test_one_whose_data_never_comes_is_given_an_uncounted_mini_batch_once() -> None:
    """The first ring is gone before the leader knew that it stood: nothing is ever leased for it."""
    worker = Worker()
    worker.enters(worker.seat(1, 0))
    worker.machine.handle(DataWanted(SPEC))
    orders = worker.orders(assignment=worker.seat(2, None))
    assert worker.machine.handle(StillWaiting(orders, ahead=True)) == [TrainStandIns()]
    assert worker.machine.handle(StillWaiting(orders, ahead=True)) == []
    assert not worker.machine.weight_is_due
    broke, then = worker.machine.handle(BatchEnded())
    assert (broke, then, worker.told.phase) == (TellDaemon(), ReadOrders(), Phase.BROKEN)
    assert isinstance(worker.machine.handle(OrdersRead(orders))[0], EnterRing)


# ---------------------------------------------------------------------------------------------------- a mini-batch


def test_a_usual_mini_batch_is_none_of_the_machines_business() -> None:
    worker = Worker().sits()
    worker.trains(1)
    assert worker.machine.check_is_due, "the members of a young ring compare soon"
    worker.machine.handle(StatesEqual())
    (weight,) = worker.machine.handle(StepCovered(2, 1))
    assert isinstance(weight, SetWeight) and weight.weight == 4 / 8
    assert worker.count.usual_until == 4
    worker.machine.unusual.note_equal(64, 2)
    worker.machine.handle(StepCovered(2, 1))
    assert worker.count.usual_until == 10
    worker.machine.handle(happens.RatesHold(5))
    assert worker.count.usual_until == 5
    worker.machine.handle(BatchVoid("reset"))
    assert worker.count.usual_until == 0


def test_a_void_mini_batch_commits_nothing_and_waits_for_another_ring() -> None:
    worker = Worker().sits().trains(3)
    worker.machine.handle(BatchVoid("reset"))
    worker.machine.handle(BatchVoid("and again"))
    assert worker.machine.handle(BatchEnded()) == [TellDaemon(), ReadOrders()]
    assert ring_of(worker.told) == (Phase.BROKEN, 1, "reset")
    assert (worker.machine.state, worker.count.step) == (TrainerState.WAITING, 3)


def test_a_planned_switch_comes_after_its_step_and_not_before() -> None:
    worker = Worker().sits().trains(3)
    planned = worker.orders(assignment=worker.seat(2, 5, follows=1))
    assert worker.machine.handle(OrdersHeard(planned)) == []
    assert worker.machine.handle(BatchEnded(attention=True)) == [RecordStep(1, 4), ReadOrders()]
    assert worker.machine.handle(OrdersRead(planned)) == []
    worker.machine.handle(BatchEnded(attention=True))
    assert worker.machine.handle(OrdersRead(planned)) == [EnterRing(planned.assignment, cut=False)]  # type: ignore[arg-type]


def test_at_a_mark_it_waits_for_what_follows() -> None:
    worker = Worker().sits().trains(3)
    worker.machine.handle(StatesEqual())
    worker.machine.handle(StepCovered(4, 1))
    marked = worker.orders(shares=(worker.share(1, 0, rebatch=7, mark=2),))
    assert worker.machine.handle(OrdersHeard(marked)) == [TellDaemon()]
    assert worker.told.marked == (7, 4), "it works on step 4"
    assert worker.count.usual_until == 4
    assert worker.machine.handle(BatchEnded())[-1] == ReadOrders()
    assert worker.machine.handle(OrdersRead(marked)) == [AwaitOrders()]
    assert TellDaemon() in worker.reads(shares=(worker.share(1, 0),))
    assert (worker.told.marked, worker.machine.state) == ((0, 0), TrainerState.TRAINING)


def test_the_weight_that_was_found_for_a_ring_that_is_left_is_none_of_the_next_one() -> None:
    worker = Worker().sits().trains(3)
    assert worker.machine.handle(StepCovered(4, 0)) == []
    assert worker.machine.handle(StepCovered(3, 1)) == [], "it is trained"
    assert len(worker.machine.handle(StepCovered(4, 1))) == 1


def test_states_are_compared_at_numbers_that_all_know_and_when_a_ring_begins() -> None:
    worker = Worker().sits().trains(3)
    worker.machine.handle(BatchVoid("reset"))
    worker.machine.handle(BatchEnded())
    checking = Checking(every=20)
    copy = worker.enters(worker.seat(2, None, checking=checking), in_state_of(3, 1))
    assert copy == [CopyRest(0, is_root=True, unsure=True)]
    worker.machine.handle(StateCopied())
    worker.reads(shares=(worker.share(2, 3),))
    assert worker.machine.check_is_due
    worker.machine.handle(StatesEqual())
    assert (worker.machine.check_is_due, worker.machine.unusual.check_at) == (False, 4)
    worker.machine.unusual.note_equal(7, 2)
    assert worker.machine.unusual.check_at == 19, "the third of those that a young ring makes"
    worker.machine.unusual.note_equal(19, 2)
    assert worker.machine.unusual.check_at == 20


# --------------------------------------------------------------------------------------------------------- a new ring


def test_who_is_behind_takes_over_the_newest_state_and_its_step() -> None:
    worker = Worker().sits().trains(3)
    worker.machine.handle(BatchVoid("reset"))
    worker.machine.handle(BatchEnded())
    assert worker.enters(worker.seat(2, None), in_state_of(4, 1)) == [CopyState(1, is_root=False)]
    worker.machine.handle(StateCopied())
    assert (worker.count.step, worker.machine.state) == (4, TrainerState.AWAITING_SHARE)


def test_a_state_that_was_half_copied_becomes_no_members() -> None:
    worker = Worker().sits().trains(3)
    worker.machine.handle(BatchVoid("reset"))
    worker.machine.handle(BatchEnded())
    worker.enters(worker.seat(2, None), in_state_of(4, 1))
    worker.machine.handle(RingFailed("the giver died"))
    assert not worker.machine.has_state
    worker.reads(assignment=worker.seat(3, None))
    assert worker.machine.handle(RingFormed()) == [Agree(Vote(newest=0, behind=1, doubts=0, unbooted=0))]


def test_where_the_only_newest_state_is_lost_the_script_ends_with_the_reason() -> None:
    worker = Worker().sits().trains(3)
    worker.machine.handle(BatchVoid("reset"))
    worker.machine.handle(BatchEnded())
    worker.enters(worker.seat(2, None), in_state_of(4, 1))
    worker.machine.handle(RingFailed("the giver died"))
    worker.reads(assignment=worker.seat(3, None))
    worker.machine.handle(RingFormed())
    (fail,) = worker.machine.handle(VotesHeard(Vote(newest=0, behind=1, doubts=0, unbooted=0)))
    assert isinstance(fail, Fail) and "lost" in fail.reason
    assert worker.machine.state is TrainerState.LEAVING


def test_a_ring_whose_data_never_comes_is_left_for_the_next_one() -> None:
    worker = Worker().sits().trains(3)
    worker.machine.handle(BatchVoid("reset"))
    worker.machine.handle(BatchEnded())
    worker.enters(worker.seat(2, None))
    worker.machine.handle(StateCopied())
    assert worker.machine.state is TrainerState.AWAITING_SHARE
    assert worker.reads(shares=(worker.share(1, 0),)) == [AwaitOrders()], "that of the ring before"
    (enter,) = worker.reads(assignment=worker.seat(3, None))
    assert enter == EnterRing(worker.seat(3, None), cut=True)


def test_who_waits_beyond_a_mark_in_a_ring_that_is_given_up_is_given_an_uncounted_mini_batch() -> None:
    """It was counting its step as it heard of the mark, and so does not look at its orders after that."""
    worker = Worker().sits().trains(3)
    worker.machine.handle(OrdersHeard(worker.orders(shares=(worker.share(1, 0, rebatch=7, mark=2),))))
    worker.count.step = 4
    waits = {"shares": (worker.share(1, 0, rebatch=7, mark=2),)}
    assert worker.machine.handle(StillWaiting(worker.orders(**waits))) == [], "the ring may go on"
    broken = worker.orders(assignment=worker.seat(2, None), **waits)
    assert worker.machine.handle(StillWaiting(broken)) == [TrainStandIns()]
    worker.machine.handle(BatchEnded())
    assert worker.told.phase is Phase.BROKEN


# ---------------------------------------------------------------------------------------------- words, from any thread


@pytest.mark.parametrize("in_time", [True, False])
def test_by_leases_that_were_foreseen_it_trains_only_if_it_says_so_as_it_comes(in_time: bool) -> None:
    """Else its daemon tells a step that it has made by them, and that those of before hold."""
    worker = Worker().sits().trains(3)
    worker.machine.handle(BatchVoid("a peer is gone"))
    worker.machine.handle(BatchEnded())
    foreseen = {"shares": (worker.share(2, 3, foreseen=True),)}
    changes: dict[str, Any] = foreseen if in_time else {}
    worker.enters(worker.seat(2, None), SILENT, **changes)
    assert TellDaemon() in worker.machine.handle(StateCopied())
    assert worker.told.leases_of == (2 if in_time else 1)
    worker.machine.handle(OrdersHeard(worker.orders(**foreseen)))
    assert worker.machine.has_share is in_time
    worker.machine.handle(OrdersHeard(worker.orders(shares=(worker.share(2, 3, foreseen=True, batch=9),))))
    assert worker.machine.supply.leases.batch == (9 if in_time else 0), "those that it trains by may grow"
    worker.machine.handle(OrdersHeard(worker.orders(shares=(worker.share(2, 3),))))
    assert worker.machine.has_share
    assert worker.told.leases_of == (2 if in_time else 1), "how it has come there"


def test_a_ring_that_is_given_up_is_cut_while_the_training_thread_is_in_it() -> None:
    worker = Worker().sits().trains(3)
    heard = worker.machine.handle(OrdersHeard(worker.orders(assignment=worker.seat(2, None))))
    assert heard == [AbortRings(range(2))]
    assert worker.machine.state is TrainerState.TRAINING


def test_orders_that_come_after_newer_ones_change_nothing() -> None:
    worker = Worker().sits().trains(3)
    stale = worker.orders(verdict=Verdict.STOP, reason="an old leader's")
    worker.machine.handle(OrdersHeard(worker.orders()))
    assert worker.machine.handle(OrdersHeard(stale)) == []
    assert worker.machine.handle(StillWaiting(stale)) == []


def test_a_switch_that_was_missed_is_told_once_where_no_samples_are_left_before_it() -> None:
    worker = Worker().sits().trains(10)
    late = worker.orders(assignment=worker.seat(2, 8, follows=1))
    assert worker.machine.handle(StillWaiting(late)) == [TellDaemon()]
    assert worker.told.missed == 2
    assert worker.machine.handle(StillWaiting(late)) == []


def test_a_switch_whose_step_the_ring_has_passed_is_told_once_and_not_made() -> None:
    worker = Worker().sits().trains(9)
    worker.machine.state = TrainerState.BETWEEN
    late: dict[str, Any] = {"assignment": worker.seat(2, 8, follows=1), "shares": (worker.share(1, 0),)}
    assert TellDaemon() in worker.reads(**late)
    assert worker.told.missed == 2
    assert worker.machine.state is TrainerState.TRAINING
    assert (worker.machine.generation, worker.machine.step) == (1, 9)
    worker.machine.state = TrainerState.BETWEEN
    assert TellDaemon() not in worker.reads(**late)


def test_a_leaver_whose_step_the_ring_has_passed_stays_until_it_is_told_another() -> None:
    worker = Worker().sits().trains(9)
    for after_step, leaves in ((8, False), (10, False), (9, True)):
        worker.machine.state = TrainerState.BETWEEN
        worker.reads(verdict=Verdict.LEAVE, leave_after_step=after_step, shares=(worker.share(1, 0),))
        assert (worker.machine.state is TrainerState.LEAVING) is leaves


def test_one_that_was_left_alone_in_a_mini_batch_beyond_a_switch_comes_all_the_same() -> None:
    worker = Worker().sits().trains(9)
    worker.machine.handle(BatchVoid("reset"))
    worker.machine.handle(BatchEnded())
    late = worker.seat(2, 8, follows=1)
    assert worker.reads(assignment=late) == [EnterRing(late, cut=False)], "its own ring is broken"


def test_a_pipelines_thread_obeys_for_itself_alone() -> None:
    worker = Worker().sits().trains(3)
    stop = worker.orders(verdict=Verdict.STOP, reason="enough")
    assert worker.machine.handle(StillWaiting(stop, ahead=True)) == [Fail("enough")]
    assert worker.machine.state is TrainerState.TRAINING
    assert worker.machine.handle(StillWaiting(stop)) == [LeaveRing(), EndScript("enough")]
    assert worker.machine.handle(StillWaiting(stop, ahead=True)) == [], "the training thread obeys already"


def test_where_scripts_begin_anew_a_pipeline_that_waits_leaves_its_iteration() -> None:
    worker = Worker().sits().trains(10)
    worker.machine.handle(RestartsExpected())
    broken = worker.orders(assignment=worker.seat(2, None))
    assert worker.machine.handle(StillWaiting(broken, ahead=True)) == [BreakIteration()]


def test_who_is_told_to_leave_takes_part_up_to_its_last_step() -> None:
    worker = Worker().sits().trains(3)
    leave = worker.orders(verdict=Verdict.LEAVE, leave_after_step=5)
    worker.machine.handle(BatchEnded(attention=True))
    assert worker.machine.handle(OrdersRead(leave)) == []
    worker.machine.handle(BatchEnded(attention=True))
    assert worker.machine.handle(OrdersRead(leave)) == [LeaveRing(), EndScript("")]
    assert worker.machine.supply.leases.closed
    assert worker.machine.handle(ScriptEnded(STATE)) == [TellDaemon()]
    assert (worker.told.phase, worker.told.final, worker.told.joined) == (Phase.DONE, STATE, 0)


@pytest.mark.parametrize("resumed", [False, True])
def test_what_is_saved_is_taken_over_if_the_leader_says_so_whatever_its_launcher_knew(resumed: bool) -> None:
    worker = Worker()
    origin = Origin("/c/j/0001-000001-000000000031", 31, 2, 0) if resumed else None
    worker.enters(worker.seat(1, 0, size=1), origin=origin)
    assert worker.machine.model.may_differ == resumed


def test_the_first_reason_for_a_bad_end_counts() -> None:
    worker = Worker().sits()
    worker.machine.handle(ScriptFailed("ValueError: x"))
    worker.machine.handle(ScriptFailed("SystemExit: 1"))
    worker.machine.handle(ScriptEnded(STATE))
    assert (*ring_of(worker.told), worker.told.final) == (Phase.FAILED, 1, "ValueError: x", ())


@pytest.mark.parametrize("foreign", [False, True])
def test_a_script_that_does_not_go_with_what_was_saved_says_so(foreign: bool) -> None:
    worker = Worker().sits()
    worker.machine.handle(ScriptFailed("other", foreign))
    worker.machine.handle(ScriptFailed("SystemExit: 1", not foreign))
    worker.machine.handle(ScriptEnded())
    assert (worker.told.reason, worker.told.foreign) == ("other", foreign)


def test_all_that_a_daemon_must_know_is_one_value() -> None:
    worker = Worker()
    worker.machine.introduce(prepares=True, sends_state=True)
    worker.sits().trains(3)
    worker.machine.handle(BatchVoid("reset"))
    assert (worker.told.phase, worker.told.void) == (Phase.TRAINING, Void(1)), "its script is in that mini-batch"
    worker.machine.handle(BatchEnded())
    for news in (
        happens.LeaveWanted(),
        happens.FiguresReported({"loss": 0.5}),
        happens.ScriptStands(PLACE),
        happens.BitsStand("held"),
    ):
        assert worker.machine.handle(news) == [TellDaemon()]
    assert worker.told == TrainerStatus(
        phase=Phase.BROKEN,
        generation=1,
        began=0,
        leases_of=1,
        data=SPEC,
        pause=PAUSE,
        leaving=True,
        reason="reset",
        booted=True,
        prepares=True,
        sends_state=True,
        void=Void(1),
        whereabouts=PLACE,
        bits="held",
        figures={"loss": 0.5},
    )


def test_in_the_next_ring_what_was_void_and_broken_is_no_more() -> None:
    worker = Worker().sits().trains(3)
    worker.machine.handle(BatchVoid("reset"))
    worker.machine.handle(BatchEnded())
    worker.enters(worker.seat(2, None), in_state_of(3, 1))
    worker.machine.handle(StateCopied())
    assert (*ring_of(worker.told), worker.told.void, worker.told.began) == (Phase.TRAINING, 2, "", None, 3)


def test_an_exception_as_long_as_a_tensor_is_clipped_before_it_travels() -> None:
    """The value is sent whole each time: its size is bounded."""
    worker = Worker().sits()
    worker.machine.handle(BatchVoid("x" * 2_000_000))
    worker.machine.handle(BatchEnded())
    assert worker.told.reason == "x" * 1997 + "..."
    worker.machine.handle(ScriptFailed("y" * 2_000_000))
    worker.machine.handle(ScriptEnded())
    assert worker.told.reason == "y" * 1997 + "..."
    assert len(msgspec.msgpack.encode(worker.told)) < 5000


def test_that_its_job_goes_is_heard_of_once() -> None:
    """Its daemon kills a script that cannot hear of it."""
    worker = Worker().sits().trains(3)
    going = worker.orders(verdict=Verdict.STOP, reason="step 3 is saved", resumable=True)
    assert not worker.told.heard_going
    assert worker.machine.handle(OrdersHeard(going))[-1] == TellDaemon()
    assert worker.told.heard_going
    assert TellDaemon() not in worker.machine.handle(OrdersHeard(going))


def test_a_usual_step_has_nothing_to_tell() -> None:
    worker = Worker().sits().trains(1)
    told = worker.told
    worker.machine.handle(StatesEqual())
    for step in range(2, 8):
        for usual in (happens.RatesHold(step), StepCovered(step, 1), BatchBegins(), BatchEnded()):
            assert TellDaemon() not in worker.machine.handle(usual)
    assert worker.told is told
