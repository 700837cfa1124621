"""The machine of one worker's trainer: it takes what happens to it, one input after another, and says what follows.

Owns: where the trainer is (`edl.core.worker.worker_states`), which step it has committed, in which ring it sits, what
of a mini-batch is void, whether its state may become another's, its weight, and what its daemon is told of it. Does not
own: what orders mean (`edl.core.worker.next_move`), on which state a ring agrees (`edl.core.worker.agreement`), what
each step has of the data (`edl.core.worker.lease_buffer`), nor anything that takes time: its shell carries out the
commands (`edl.trainer.worker_shell`; in simulated jobs `tests.model.model_trainers`) and tells what came of them.

`handle(input)` is the one mutator. A trainer's threads call it under one lock, and carry out what it answers without.
There is no queue that the training thread would empty: what the daemon's word changes must not wait for a collective,
whose end it may be to bring about.

What the daemon is told is one value, `status`. When an input changes it, it is sent whole (`TellDaemon`); another
daemon is sent the same one. A usual step changes nothing in it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from msgspec.structs import replace

from edl.core.worker.agreement import Entering, Vote, begins, says
from edl.core.worker.checkpoint_part import CheckpointPart
from edl.core.worker.lease_buffer import LeaseBuffer
from edl.core.worker.model_state import ModelState
from edl.core.worker.next_move import (
    EndReading,
    Enter,
    GiveUpWait,
    Leave,
    LeaveIteration,
    Location,
    Stay,
    Stop,
    UseStandIns,
    are_newer,
    given_up,
    holds_at,
    missed_switch,
    next_move,
    next_wait,
    passed_switch,
    replaced,
)
from edl.core.worker.next_ring import NextRing
from edl.core.worker.sample_supply import SampleSupply, StepCount, UsualSteps
from edl.core.worker.worker_inputs import (
    AbortRings,
    AdoptRing,
    Agree,
    AwaitOrders,
    BatchBegins,
    BatchEnded,
    BatchVoid,
    BootAlone,
    BreakIteration,
    CheckpointWished,
    Command,
    CopyFailed,
    CopyTaken,
    DataWanted,
    EndScript,
    EnterRing,
    Fail,
    FromComparison,
    FromCopying,
    FromNextRing,
    FromOrders,
    FromPortions,
    FromRing,
    FromScript,
    FromTraining,
    HealingBegins,
    Input,
    LeaveRing,
    OrdersHeard,
    OrdersRead,
    RatesHold,
    ReadOrders,
    RecordRing,
    RecordStep,
    RestartsExpected,
    RingFailed,
    RingFormed,
    RingNotPrepared,
    RingPrepared,
    ScriptEnded,
    ScriptFailed,
    StateComes,
    StateCopied,
    StateMeasured,
    StateNeeded,
    StatesDiffer,
    StatesEqual,
    StepCovered,
    StillWaiting,
    TellDaemon,
    TrainStandIns,
    VotesHeard,
    changes,
)
from edl.core.worker.worker_states import ALONE, ENDING, READY, SITTING, StateChange, TrainerState, following
from edl.errors import InvalidTransition, JobFailed, RingBroken
from edl.protocol.assignment import Assignment, Orders, Verdict
from edl.protocol.data_nouns import DataSpec
from edl.protocol.divergence_report import Fingerprint
from edl.protocol.leader_messages import Pause, Phase, Void, clipped
from edl.protocol.trainer_messages import TrainerStatus

TELLS: Final = TellDaemon()
ALONE_AGAIN: Final = {"generation": 0, "reason": ""}  # whatever first ring it has failed in before


class WorkerMachine:
    def __init__(
        self, leases: LeaseBuffer, count: StepCount, measure: Callable[[], Pause | None] = lambda: None
    ) -> None:
        """`measure` returns the cost of the change of rings that ends with the call."""
        self.count = count
        self.state = TrainerState.COMING
        self.status = TrainerStatus()  # what the daemon is told
        self.limbs = 1  # processes of this worker: with several, all look at the same orders at the same moments
        self.orders: Orders | None = None  # the newest; of several limbs: that they have looked at
        self._heard: Orders | None = None  # the newest
        self.rank, self.size, self.local_rank = 0, 1, 0
        self.generation = 0  # of the ring that it sits in, or sat in last; 0: alone
        self.entered_after = 0  # the step that this generation took over after
        self.void: str | None = None  # why the mini-batch in flight is void
        self.model = ModelState()
        self.unusual = UsualSteps()
        self.supply = SampleSupply(leases, self.unusual)
        self.next_ring = NextRing()
        self.copying = CheckpointPart()
        self.rehearsed = False
        self.failure = ""  # why the script ends, when it does not end well
        self._foreign = False  # what was saved does not go with it
        self._entering: Entering | None = None
        self._failed_generation = 0  # a newer one that could not be entered
        self._tries = False  # its ring has newcomers, and it is none
        self._stood_in = 0  # the generation in which its script was given stand-ins, as no data came
        self.restarts = False  # a broken ring makes the script leave its iteration over the data
        self._measure = measure
        self._history: deque[tuple[TrainerState, type[Input]]] = deque(maxlen=50)

    def introduce(self, *, prepares: bool, sends_state: bool, limbs: int = 1) -> None:
        """Set what this trainer is able to do, and that its worker is so many processes, which decide alike. Call it
        before the trainer has a daemon: one of them may hear orders before the others.
        """
        self.limbs, self.supply.alike = limbs, limbs > 1
        self.next_ring.able = prepares
        self.status = replace(self.status, prepares=prepares, sends_state=sends_state)

    # ------------------------------------------------------------------------------------------------- the mutator

    def handle(self, happened: Input) -> list[Command]:
        """Take one input; return what is to be done, in this order. Raises InvalidTransition."""
        self._history.append((self.state, type(happened)))
        try:
            commands = self._handle(happened)
        except InvalidTransition as error:
            story = "".join(f"\n  {state.value}: {kind.__name__}" for state, kind in self._history)
            error.add_note(f"the worker's newest inputs:{story}")
            raise
        if TELLS in commands:
            self.status = self.gathered()
        usual = self.generation and self.void is None and not self.model.may_differ and not self.model.portions.follow
        self.count.usual_until = self.unusual.step if usual and self.limbs == 1 else 0
        return commands

    def _handle(self, happened: Input) -> list[Command]:
        match happened:  # where learning rates follow a schedule these come in each step: they are looked for first
            case BatchEnded() | RatesHold() | StepCovered() | BatchBegins() | BatchVoid():
                return self._on_training(happened)
            case OrdersHeard() | OrdersRead() | StillWaiting():
                return self._on_orders(happened)
            case RingFormed() | RingFailed() | VotesHeard() | StateComes() | StateCopied():
                return self._on_ring(happened)
            case RingPrepared() | RingNotPrepared() | CopyTaken() | CopyFailed():
                return self._on_beside(happened)
            case StatesEqual() | StatesDiffer() | HealingBegins() | StateNeeded() | StateMeasured():
                return self._on_state(happened)
            case _:
                return self._on_script(happened)

    def _on_beside(self, happened: FromNextRing | FromCopying) -> list[Command]:
        if isinstance(happened, CopyTaken | CopyFailed):
            return self.copying.take(happened)
        return self.next_ring.take(happened)

    def _move(self, cause: StateChange) -> None:
        self.state = following(self.state, cause)

    def _tell(self, **changed: Any) -> TellDaemon:
        self.status = replace(self.status, **changed)
        return TELLS

    def gathered(self) -> TrainerStatus:
        """Return the status with the newest values of this machine's parts."""
        ring, copying = self.next_ring, self.copying
        return replace(
            self.status,
            prepares=ring.able,
            prepared=ring.prepared,
            offer=ring.offer,
            copied=copying.copied,
            save_wanted=copying.wanted,
            marked=self.supply.marked,
        )

    # --------------------------------------------------------------------------------------------------- what is so

    @property
    def step(self) -> int:
        """Return the newest committed step: the state that this trainer has is that step's."""
        return self.count.step

    @property
    def sits(self) -> bool:
        return self.state in SITTING

    @property
    def booted(self) -> bool:
        """Tell whether this trainer could go on in a ring of others at once."""
        return self.generation > 0 or self.rehearsed

    @property
    def has_state(self) -> bool:
        return self.model.is_of(self.count.step)

    @property
    def assignment(self) -> Assignment | None:
        """Return the assignment to the ring that is about to be entered; None: there is none."""
        return None if self._entering is None else self._entering.assignment

    @property
    def begins_after(self) -> int:
        """Return the step that the present ring begins after, or the ring to be entered, once that is known."""
        beginning = None if self._entering is None else self._entering.beginning
        return self.entered_after if beginning is None else beginning.step

    @property
    def has_share(self) -> bool:
        """Tell whether the data of the present ring has come."""
        return self.supply.leases_of == self.generation > 0

    @property
    def weight_is_due(self) -> bool:
        """Tell whether the weight of the mini-batch being worked on is not known yet, and matters."""
        return self.status.data is not None and self.void is None and self.count.step >= self.unusual.even_until

    @property
    def check_is_due(self) -> bool:
        """Tell whether the members of this ring compare their states now."""
        return self.generation > 0 and self.void is None and self.count.step >= self.unusual.check_at

    @property
    def on_trial(self) -> bool:
        """Tell whether this worker goes from its ring to one with newcomers, or has made no step there yet
        (`Ring.on_trial`).
        """
        entering = self._entering
        if entering is not None:
            return not entering.is_new and entering.assignment.newcomers > 0
        return self._tries and self.count.step == self.entered_after

    @property
    def _resumes(self) -> bool:
        """Tell whether this trainer takes over, before the first step, what was saved."""
        return self.orders is not None and self.orders.origin is not None

    def _where(self, *, waiting: bool) -> Location:
        return Location(max(self.generation, self._failed_generation), self.count.step, waiting)

    # ------------------------------------------------------------------------------------------------------- orders

    def _on_orders(self, happened: FromOrders) -> list[Command]:
        orders = happened.orders
        told: list[Command] = []
        if orders is not None:
            self._heard = orders if self._heard is None or not are_newer(self._heard, orders) else self._heard
            if self.limbs == 1 or not isinstance(happened, OrdersHeard):  # else when all limbs look at them
                self.orders = orders if self.orders is None or not are_newer(self.orders, orders) else self.orders
                told = self._adopt(orders)  # of which the buffer drops what is old
            elif orders is self._heard:
                told = self.supply.promise(orders, self.generation, self.entered_after, self.count.step)
            if orders is self._heard and self.state not in ENDING:
                works = isinstance(happened, OrdersHeard) and self.state is TrainerState.TRAINING
                told += self.next_ring.heed(orders, works_in=self.generation if works else 0)
                told += self._copy_part(orders, looks=isinstance(happened, OrdersRead))
        match happened:
            case OrdersHeard():
                return [*told, *self._abort(happened.orders), *self._hear_going(happened.orders)]
            case OrdersRead():
                return [*told, *self._look()]
            case StillWaiting():
                return [*told, *self._wait_on(happened.ahead)]

    def _copy_part(self, orders: Orders, *, looks: bool) -> list[Command]:
        """Copy this worker's part before it obeys these orders otherwise: it may leave its ring after the very step."""
        if orders.verdict is Verdict.STOP or not self.generation:
            return []
        between = looks and self.state is TrainerState.BETWEEN
        left = orders.save is not None and bool(orders.save.limbs)  # others of its worker's processes are dead
        rests = left or (self.state is TrainerState.TRAINING and self.void is None)
        works = rests and self.has_state and not self.model.is_awaited and not self.model.may_differ
        return self.copying.heed(orders.save, self.generation, self.count.step, between=between, works=works)

    def _abort(self, orders: Orders) -> list[Command]:
        """Do not wait in a collective for a member that is gone, or hangs."""
        sits = self.generation > 0 or self._entering is not None
        rings = given_up(orders) if sits and orders is self._heard else range(0)
        return [AbortRings(rings)] if rings else []

    def _hear_going(self, orders: Orders) -> list[Command]:
        """Tell the daemon once that the trainer has heard of the preemption, and so is not held by native code."""
        return [self._tell(heard_going=True)] if orders.resumable and not self.status.heard_going else []

    def _look(self) -> list[Command]:
        """Follow the orders, whatever they say: the caller is where this trainer may follow them."""
        orders = self.orders
        if self.state is TrainerState.AWAITING_SHARE and self.has_share:
            return self._go_on_with_data()
        move = None if orders is None else next_move(self._where(waiting=self.state in READY), orders)
        if isinstance(move, Leave | Stop):
            return self._obey(move)
        if isinstance(move, Enter):
            return self._enter(move.assignment)
        return [*self._tell_passed(), *self._stay()]

    def _stay(self) -> list[Command]:
        """Boot, wait for other orders, or train on, as this trainer is to go to no other ring yet."""
        orders = self.orders
        if self.state is TrainerState.COMING and orders is not None and orders.boot_alone:
            return self._boot(orders.local_rank)
        if self.state in READY or self.supply.leases.holds_at(self.count.step) or self._is_held():
            return [AwaitOrders()]
        self._move(StateChange.GOES_ON)
        return []

    def _is_held(self) -> bool:
        """Tell whether the job is to go with what was copied after this step."""
        return self.orders is not None and holds_at(self.generation, self.count.step, self.orders)

    def _obey(self, move: Leave | Stop) -> list[Command]:
        """Leave the job, or stop with it. A pipeline that waits for samples would hold up what the script closes."""
        self.supply.leases.close()
        self._move(StateChange.OBEYS)
        reason, resumable = (move.reason, move.resumable) if isinstance(move, Stop) else ("", False)
        self.failure = reason or self.failure
        return [*self.next_ring.release(), LeaveRing(), EndScript(reason, resumable)]

    def _boot(self, local_rank: int) -> list[Command]:
        """The first ring, if this trainer was needed for one that failed, does without it."""
        self._move(StateChange.BOOTS_ALONE)
        self.local_rank = local_rank
        return [BootAlone(local_rank), self.supply.weigh(1.0)]

    def _wait_on(self, ahead: bool) -> list[Command]:
        """Check that there is still a job. What is worked on is not left, but for the end of it all."""
        orders = self.orders
        if orders is None or (ahead and self.state not in (*ALONE, TrainerState.TRAINING)):
            return []
        where = self._where(waiting=False)
        match next_wait(where, orders, ahead=ahead, restarts=self.restarts, lacks_data=self._lacks_data()):
            case Leave() | Stop() as move:
                return self._obey(move)
            case GiveUpWait(reason):
                self.failure = reason
                return [Fail(reason)]
            case LeaveIteration():
                return [BreakIteration()]
            case UseStandIns():
                return self._stand_in()
            case EndReading():
                self.supply.leases.close()
            case Stay():
                pass
        covered, marked = self.supply.leases.covers(where.step + 1), bool(self.supply.leases.marked[0])
        return self._tell_passed() or self._tell_missed(0 if covered else missed_switch(where, orders, marked=marked))

    def _lacks_data(self) -> bool:
        """Tell whether no samples of this ring have come, or there are none beyond its step: the trainer was at the
        mark just before it heard of that, or a stream's readers have found no more.
        """
        return not self.has_share or not self.supply.leases.covers(self.count.step + 1)

    def _stand_in(self) -> list[Command]:
        """Stand in once: a pipeline that reads ahead asks again, and what it is given then would be trained in the next
        ring.
        """
        if self._stood_in == self.generation:
            return []
        self._stood_in = self.generation
        self.void = self.void or "the ring came to nothing before its data came"
        return [TrainStandIns()]

    def _tell_passed(self) -> list[Command]:
        """Tell once that no member comes to the planned switch, as the leader plans another then."""
        where = self._where(waiting=self.state in READY)
        return [] if self.orders is None else self._tell_missed(passed_switch(where, self.orders))

    def _tell_missed(self, generation: int) -> list[Command]:
        if not self.generation or generation <= self.status.missed:
            return []
        return [self._tell(missed=generation)]

    # -------------------------------------------------------------------------------------------------- its data

    def _adopt(self, orders: Orders, *, comes: bool = False) -> list[Command]:
        return self.supply.adopt(orders, self.generation, self.entered_after, self.count.step, comes=comes)

    def _go_on_with_data(self) -> list[Command]:
        self._move(StateChange.HAS_DATA)
        self.void = None
        step = self.count.step
        self.unusual.even_until = step  # so that the next step is weighed
        return self.supply.cover(step + 1) if self.supply.leases.covers(step + 1) else []

    # -------------------------------------------------------------------------------------------------------- rings

    def _enter(self, assignment: Assignment) -> list[Command]:
        """Leave this ring and go to the assigned one, to take over the state of its most advanced member (I5)."""
        self._move(StateChange.ENTERS)
        self.model.leave()
        entering = self._entering = Entering(
            assignment,
            self.generation,
            self.count.step,
            has_state=self.has_state,
            voided=self.void is not None,
            booted=self.booted,
        )
        if not assignment.prepared:
            return self._enter_unprepared(entering, assignment)
        if self.next_ring.adopt(assignment.place.generation) or self.limbs > 1:  # of which others may have it
            return [AdoptRing(assignment)]
        return self._fail(entering, "what was prepared of it does not stand any more")  # the others adopt theirs

    def _enter_unprepared(self, entering: Entering, assignment: Assignment) -> list[Command]:
        """Form the ring in line; or wait for the thread that began to form it when its word came, which may be through
        by now.
        """
        generation, (failed, why) = assignment.place.generation, self.next_ring.failed
        if failed == generation and self.limbs > 1:  # the other limbs, whose rings may stand, are to hear of it
            return [AdoptRing(assignment)]
        if failed == generation:  # no ring is formed twice under one number
            return self._fail(entering, why)
        cut, begun = self.generation in replaced(assignment), self.next_ring.join(generation)
        return [*self.next_ring.release(), EnterRing(assignment, cut, begun)]

    def _on_ring(self, happened: FromRing) -> list[Command]:
        entering = self._entering
        if entering is None and isinstance(happened, StateCopied):  # in a ring that trains
            return [self._enters()] if self.model.receive() else []
        if entering is None:
            raise InvalidTransition(self.state, happened)
        match happened:
            case RingFormed():
                return self._say(entering)
            case VotesHeard(highest):
                return self._begin(entering, highest)
            case StateCopied() | StateComes():
                return self._sit(entering)
            case RingFailed(reason):
                return self._fail(entering, reason)

    def _say(self, entering: Entering) -> list[Command]:
        try:
            vote = says(entering)
        except RingBroken as error:
            return self._fail(entering, str(error))
        return self._begin(entering, None) if vote is None else [Agree(vote)]

    def _begin(self, entering: Entering, heard: Vote | None) -> list[Command]:
        try:
            beginning = entering.beginning = begins(entering, heard)
        except RingBroken as error:
            return self._fail(entering, str(error))
        except JobFailed as error:
            self._entering = None
            self._move(StateChange.STATE_LOST)
            return [Fail(str(error))]
        if beginning.root is None:
            return self._sit(entering)
        command, sits = self.model.begin(entering, beginning, beginning.root)
        return [*([] if command is None else [command]), *(self._sit(entering) if sits else [])]

    def _sit(self, entering: Entering) -> list[Command]:
        """Begin in a ring that stands, with all members in the state that it begins in."""
        beginning, place = entering.beginning, entering.assignment.place
        assert beginning is not None
        self.model.sit(entering, beginning, resumes=self._resumes)
        self._tries, self._entering = self.on_trial, None
        self.rank, self.size, self.local_rank = place.rank, place.size, place.local_rank
        self.generation, self._failed_generation = place.generation, 0
        self.next_ring.sit()
        self.entered_after = self.count.step = beginning.step
        self.supply.weightless = False
        over = entering.assignment.beside if beginning.offer else 0
        self.unusual.sit(entering.assignment.checking, beginning.step, place.size, beside=over)
        sat: list[Command] = [self.supply.weigh(1.0 / place.size), RecordRing(place, beginning.step)]
        if self.orders is not None:  # if it begins after the planned step, or the foreseen one, its leases are here
            sat += self._adopt(self.orders, comes=True)
        self.supply.leases.forget_before(beginning.step + 1)
        sat.append(self._enters())
        return [*sat, *self._go_on()]

    def _enters(self) -> TellDaemon:
        """Report that the trainer's ring stands, or that a newcomer has got its state there."""
        sits = not self.model.is_awaited  # else it is a newcomer still
        return self._tell(
            phase=Phase.TRAINING if sits else Phase.READY,
            generation=self.generation if sits else 0,
            began=self.entered_after,
            leases_of=self.supply.leases_of,
            pause=self._measure() if sits else None,
            reason="",
            void=None,
            booted=True,
        )

    def _breaks(self, generation: int, reason: str) -> TellDaemon:
        return self._tell(phase=Phase.BROKEN, generation=generation, reason=clipped(reason))

    def _go_on(self) -> list[Command]:
        """Go on in the ring that stands. Scripts that bring data of their own, or have asked for none yet, wait for
        none.
        """
        if self.status.data is not None:
            self._move(StateChange.STANDS)
            return [ReadOrders()]
        self._move(StateChange.STANDS_WITHOUT_DATA)
        self.void = None
        return []

    def _fail(self, entering: Entering, reason: str) -> list[Command]:
        generation = entering.assignment.place.generation
        self._entering, self._failed_generation = None, generation
        self._move(StateChange.RING_FAILED if self.booted else StateChange.RING_FAILED_FIRST)
        return [LeaveRing(), self._breaks(generation, reason), *self._look()]

    # ------------------------------------------------------------------------------------------------- mini-batches

    def _on_training(self, happened: FromTraining) -> list[Command]:
        match happened:
            case BatchEnded():
                return self._end_batch(happened.attention)
            case RatesHold():
                self.unusual.rates_until = happened.until_step
                return []
            case StepCovered(step, generation):
                # What a pipeline's thread finds for a ring that is left meanwhile says nothing of the next one.
                return self.supply.cover(step) if generation == self.generation and step > self.count.step else []
            case BatchBegins():
                return self._begin_equal()
            case BatchVoid(reason, awaited, waited_s):
                return self._void(reason, Void(self.generation, clipped(awaited), waited_s))

    def _void(self, reason: str, void: Void) -> list[Command]:
        """Tell the daemon at once that the mini-batch is void: the leader may be looking for the member that hangs."""
        if self.void is not None:
            return []
        self.void = reason
        if not self.generation:
            return []
        return [self._tell(void=void)]

    def _begin_equal(self) -> list[Command]:
        """The first generation starts from rank 0's model."""
        if not self.model.may_differ:
            return []
        self.model.may_differ = False
        return [self.model.copy(0, is_root=self.rank == 0, current=False)]

    def _end_batch(self, attention: bool) -> list[Command]:
        if not self.generation:
            self.rehearsed = True
            self._move(StateChange.BATCH_ENDED)
            return [self._tell(phase=Phase.READY, booted=True, **ALONE_AGAIN), ReadOrders()]
        if self.void is not None:  # unless a peer has applied it
            self._move(StateChange.VOID)
            return [self._breaks(self.generation, self.void), ReadOrders()]
        if self.model.is_awaited and not self.model.portions.has_come:
            raise InvalidTransition(self.state, "a mini-batch ended well that had no state to be applied to (I5)")
        if self.orders is not None and self.orders.resumable:
            self._move(StateChange.LOOKS)  # the job is over without this step, which the next life makes
            return [ReadOrders()]
        self.count.step += 1
        applied = [] if self.model.is_awaited else [RecordStep(self.generation, self.count.step)]  # to a state
        committed: list[Command] = [*applied, *self.model.portions.next()]
        if attention or self.supply.leases.holds_at(self.count.step):
            self._move(StateChange.LOOKS)
            committed.append(ReadOrders())
        return committed

    # ------------------------------------------------------------------------------------------- states that differ

    def _on_state(self, happened: FromComparison | FromPortions) -> list[Command]:
        match happened:
            case StateNeeded():
                return [*self.model.portions.next(rest=True)]
            case StateMeasured(size):
                return [self._tell(state_bytes=size)] if size != self.status.state_bytes else []
            case StatesEqual():
                self.model.note_equal(self.count.step)
                self.unusual.note_equal(self.count.step, self.size)
                return []
            case StatesDiffer(found):
                return [self._tell(diverged=found)]
            case HealingBegins(root, current):
                return [self.model.copy(root, is_root=self.rank == root, current=current)]

    # --------------------------------------------------------------------------------------------------- the script

    def _on_script(self, happened: FromScript) -> list[Command]:
        match happened:
            case DataWanted(spec):
                return self._open(spec)
            case RestartsExpected():
                self.restarts = True
                return []
            case CheckpointWished():
                return self.copying.want(self.count.step + 1) if self.generation else []
            case ScriptFailed(reason, foreign):
                if not self.failure:
                    self.failure, self._foreign = reason, foreign
                return []
            case ScriptEnded(state):
                return self._end(state)
            case _:
                return [self._tell(**changes(happened))]

    def _end(self, state: tuple[Fingerprint, ...]) -> list[Command]:
        self._move(StateChange.ENDED)
        ended = self._tell(
            phase=Phase.FAILED if self.failure else Phase.DONE,
            reason=clipped(self.failure),
            foreign=self._foreign,
            final=() if self.failure else state,
            joined=self.model.joined if self.model.is_new else 0,
        )
        return [*self.next_ring.release(), ended]

    def _open(self, spec: DataSpec) -> list[Command]:
        """From here on steps may be uneven. Another worker may have opened first: then our share is here already."""
        before, tells = self.status.data, self._tell(data=spec)
        if self.state in ALONE:
            self._tell(phase=Phase.REHEARSING, **ALONE_AGAIN)
        elif before is None:
            self.unusual.even_until = self.count.step
        if self.state is TrainerState.BOOTING:
            self._move(StateChange.ASKED_FOR_DATA)
        self.supply.leases.want(spec.epochs, by_sample=spec.by_sample and spec.whole_epochs)
        return [tells, *([] if self.orders is None else self._adopt(self.orders))]
