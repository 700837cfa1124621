"""Simulated workers of several processes, their limbs: a machine each, which hear different things at different times.

What a training thread does, all limbs do at the same place of the same script, and agree on it first by the votes of
`edl.core.worker.limb_votes`. What other threads hear (orders, that a ring stands beside, that a copy is taken) each
limb hears by itself. Their daemon knows them by one status (`edl.core.worker.limb_votes`).

Owns: the limbs of a worker, what they agree on, and that they stay alike. Does not own: the rings that the others than
the first prepare (`tests.model.limb_rings`). The first limb is what the other files of the model see of a worker.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from edl.core.worker import limb_votes
from edl.core.worker.lease_buffer import LeaseBuffer
from edl.core.worker.limb_votes import ELSEWHERE, NO_ORDERS, Occasion
from edl.core.worker.next_move import are_newer
from edl.core.worker.worker_inputs import (
    AdoptRing,
    BatchEnded,
    BatchVoid,
    Command,
    CopyFailed,
    CopyTaken,
    EndScript,
    EnterRing,
    Fail,
    FetchState,
    Input,
    LeaveWanted,
    OrdersHeard,
    OrdersRead,
    PrepareRing,
    ReleaseRing,
    RingFailed,
    RingFormed,
    RingNotPrepared,
    RingPrepared,
    ScriptEnded,
    SendState,
    StateComes,
    StateCopied,
    StillWaiting,
    TakeCopy,
    TellDaemon,
    VotesHeard,
)
from edl.core.worker.worker_machine import WorkerMachine
from edl.core.worker.worker_states import ENDING, TrainerState
from edl.protocol.assignment import Orders
from edl.protocol.checkpoint_record import Save
from edl.protocol.leader_messages import Observation, Phase
from edl.protocol.tally import HELD, LimbSeen
from edl.protocol.trainer_messages import TrainerStatus
from tests.model.model_checkpoints import COPY_FAILS, UPDATES
from tests.model.model_rings import STEP_S
from tests.model.model_worker import KILLED, SimLeases, SimWorker, Steps

if TYPE_CHECKING:
    from tests.model.simulation import SimJob

ASIDE: Final = (TellDaemon, PrepareRing, ReleaseRing, TakeCopy)  # what limbs need not do at the same time
TOLD_S: Final = 0.003  # at most, between the words of two limbs to their daemon
HEARD_S: Final = 0.008  # at most, between the moments at which two limbs hear the same orders
SEEN_S: Final = 0.005  # at most, from a limb's death until its daemon sees it
ENDED_S: Final = 0.05  # by then the others have ended, too
HOLDS: Final = 0.9  # so often a daemon holds the processes that are left of a worker


class LimbedMachine(WorkerMachine):
    """The machine of a worker's first limb. What it is told, its worker takes."""

    def __init__(self, worker: LimbedWorker) -> None:
        super().__init__(worker.leases, worker.count)
        self._worker = worker

    def handle(self, happened: Input) -> list[Command]:
        return self._worker.take(happened)

    def handle_alone(self, happened: Input) -> list[Command]:
        return super().handle(happened)


class SimLimb:
    __slots__ = ("copying", "gone", "heard", "leases", "machine", "number", "on_the_way", "recent", "told")

    def __init__(self, number: int, machine: WorkerMachine, leases: LeaseBuffer) -> None:
        self.number = number
        self.machine = machine
        self.leases = leases
        self.told: TrainerStatus = machine.status
        self.heard: Orders | None = None  # the newest
        self.recent: list[Orders] = []
        self.on_the_way: list[Orders] = []  # told by the daemon, and not heard yet
        self.copying: Save | None = None
        self.gone = False  # its process has ended

    def handle(self, happened: Input) -> list[Command]:
        if isinstance(self.machine, LimbedMachine):
            return self.machine.handle_alone(happened)
        return self.machine.handle(happened)

    def is_behind(self, orders: Orders | None) -> bool:
        return orders is not None and (self.heard is None or are_newer(orders, self.heard))


class LimbedWorker(SimWorker):
    __slots__ = ("_job", "_source", "limbs")

    def __init__(
        self, job: SimJob, worker: str, host: str, *, processes: int, prepares: bool, sends_state: bool
    ) -> None:
        self.limbs: list[SimLimb] = []
        self._job = job
        self._source: random.Random = job.limb_source
        super().__init__(worker, host, prepares=prepares, sends_state=sends_state)
        self.machine = LimbedMachine(self)
        self.limbs.append(SimLimb(0, self.machine, self.leases))
        for number in range(1, processes):
            leases = SimLeases()
            self.limbs.append(SimLimb(number, WorkerMachine(leases, Steps()), leases))
        for limb in self.limbs:
            limb.machine.introduce(prepares=prepares, sends_state=sends_state, limbs=processes)
        self._catch_up_words()

    # --------------------------------------------------------------------------------------- what happens to a worker

    def take(self, happened: Input) -> list[Command]:
        """Take what the first limb's machine is told; return what the first limb is to do."""
        match happened:
            case OrdersHeard() | RingPrepared() | RingNotPrepared() | CopyTaken() | CopyFailed():
                if isinstance(happened, OrdersHeard):
                    self._note_heard(self.limbs[0], happened.orders)
                return self.limbs[0].handle(happened)
            case LeaveWanted() | BatchVoid():
                return self._take_apart(happened)
            case BatchEnded(attention):
                return self._end_batch(attention)
            case RingFormed() | RingFailed() | VotesHeard() | StateComes() | StateCopied():
                return self._answer(happened)
            case ScriptEnded():
                return self._end(happened)
            case _:
                return self._together(self._of_each(happened))

    def _of_each(self, happened: Input) -> list[Input]:
        """Return what each limb is told on its training thread: the same orders, as it has heard them itself."""
        if not isinstance(happened, OrdersRead | StillWaiting) or happened.orders is None:
            return [happened] * len(self.limbs)
        wanted = happened.orders.term, happened.orders.version
        held = [self._held(limb, wanted) for limb in self.limbs]
        return [OrdersRead(one) if isinstance(happened, OrdersRead) else StillWaiting(one) for one in held]

    def _take_apart(self, happened: LeaveWanted | BatchVoid) -> list[Command]:
        """Let some limbs hear at once what the others come to know by a vote, or by what becomes of it."""
        first = self.limbs[0]
        match happened:
            case LeaveWanted():
                asked = self._source.choice(self.limbs)
                self._job.after(ENDED_S, self._is_heard, asked)
                commands = asked.handle(happened)
                return commands if asked is first else self._carry_out(asked, commands)
            case BatchVoid():
                for limb in self.limbs[1:]:
                    if self._source.random() < 0.5:  # the others hear of it by the vote
                        self._carry_out(limb, limb.handle(happened))
                return first.handle(happened)

    def _together(self, happened: Sequence[Input]) -> list[Command]:
        """Let the training threads of all limbs do their part; return what the first one is to do."""
        said = [limb.handle(one) for limb, one in zip(self.limbs, happened, strict=True)]
        said = self._enter(said)
        self._are_alike(said)
        for limb, commands in list(zip(self.limbs, said, strict=True))[1:]:
            self._carry_out(limb, commands)
        return said[0]

    def _end_batch(self, attention: bool) -> list[Command]:
        looks = [attention or are_newer(one.heard, one.machine.orders) for one in self.limbs if one.heard is not None]
        looks += [attention] * (len(self.limbs) - len(looks))
        first = self._vote(looks)
        vote = self._voted(looks)
        return [*first, *self._together([BatchEnded(vote)] * len(self.limbs))]

    def _voted(self, looks: Sequence[bool]) -> bool:
        return limb_votes.update_of(self._update_rows(looks)).look

    def _vote(self, looks: Sequence[bool]) -> list[Command]:
        """A mini-batch that is void on one limb is void on all. Return what the first one is to do."""
        first: list[Command] = []
        if limb_votes.update_of(self._update_rows(looks)).void:
            for limb in self.limbs:
                if limb.machine.void is None:
                    commands = limb.handle(BatchVoid(ELSEWHERE))
                    first += commands if not limb.number else self._carry_out(limb, commands)
        return first

    def _update_rows(self, looks: Sequence[bool]) -> list[limb_votes.Row]:
        voids = [limb.machine.void is not None for limb in self.limbs]
        return [limb_votes.row(Occasion.UPDATE, *map(int, said)) for said in zip(voids, looks, strict=True)]

    def tear(self) -> bool:
        """Break the rings of some limbs, at the gradients of a step; return whether all limbs take it for void."""
        self.breaks = ""
        for limb in self._some():
            commands = limb.handle(BatchVoid("connection reset by peer"))
            self._carry_out(limb, commands)
        return limb_votes.update_of(self._update_rows([False] * len(self.limbs))).void

    def _some(self) -> list[SimLimb]:
        """Draw some limbs, and not all."""
        return self._source.sample(self.limbs, self._source.randint(1, len(self.limbs) - 1))

    def _answer(self, answer: Input) -> list[Command]:
        """Agree on what came of a command. A ring may have broken for some limbs alone."""
        answers = [answer] * len(self.limbs)
        at = "formed" if isinstance(answer, RingFormed) else "begins"
        if self.breaks == at and self.assignment is not None and not isinstance(answer, RingFailed):
            self.breaks = ""
            for limb in self._some():
                answers[limb.number] = RingFailed("connection reset by peer")
        rows = [limb_votes.answer_row(one) for one in answers]
        heard = [
            limb_votes.agreed(one, rows, sits=limb.machine.sits) for limb, one in zip(self.limbs, answers, strict=True)
        ]
        commands = self._together(heard)
        if heard[0] is not answer and not self.machine.has_state:
            self.model = self.model.half_copied(self.model)
        return commands

    def _end(self, happened: ScriptEnded) -> list[Command]:
        for limb in self.limbs[1:]:
            if limb.copying is not None:
                self._copied(limb, limb.copying)
        commands = self._together([happened] * len(self.limbs))
        for limb in self.limbs:
            self._job.after(TOLD_S * self._source.random(), self._exit, limb)
        return commands

    def _exit(self, limb: SimLimb) -> None:
        """The process of a limb ends, as its script has; the daemon judges the end."""
        if limb.gone or not self.alive or self.stalled:
            return
        if not limb.told.over:
            self._job.after(TOLD_S, self._exit, limb)
            return
        limb.gone = True
        others = [one for one in self.limbs if not one.gone]
        if limb_votes.ends_worker(limb.told, others=bool(others)) and others:
            if limb.told.phase is Phase.DONE:
                self._complain(f"limb {limb.number} has come to its good end, and the others are killed for it")
            for one in others:
                one.gone = True
            self.observed.died(KILLED)
            self._job.daemons.stir(self)

    # --------------------------------------------------------------------------------------------- what each limb does

    def _carry_out(self, limb: SimLimb, commands: Sequence[Command]) -> list[Command]:
        """Carry out what a limb other than the first does by itself. Return nothing that is left to do."""
        for command in commands:
            match command:
                case TellDaemon() if not limb.number or self._source.random() < 0.7:
                    self._tell(limb)
                case TellDaemon():
                    self._job.after(TOLD_S * self._source.random(), self._tell, limb)
                case PrepareRing(place) if limb.number:
                    self._job.limb_rings.prepare(self, limb.number, place)
                case ReleaseRing(generation) if limb.number:
                    self._job.limb_rings.release(self, limb.number, generation)
                case TakeCopy(save, beside) if limb.number:
                    self._copy(limb, save, beside=beside)
                case _:
                    pass
        return []

    def tell_limb(self, number: int, happened: Input) -> None:
        if self.alive and not self.stalled:
            limb = self.limbs[number]
            self._carry_out(limb, limb.handle(happened))

    def _tell(self, limb: SimLimb) -> None:
        if self.alive and not self.stalled and not limb.gone:
            limb.told = limb.machine.status
            self.told = limb.told if not limb.number else self.told
            self._job.shells.take_word(self, self._combine)

    def _copy(self, limb: SimLimb, save: Save, *, beside: bool) -> None:
        machine = limb.machine
        if (machine.generation, machine.step) != (save.generation, save.after_step):
            self._complain(f"limb {limb.number} copies after step {machine.step} for {save}")
        limb.copying = save
        if beside and self._source.random() < UPDATES:
            self._copied(limb, save, "its update had begun")
            return
        self._job.after(0.5 * STEP_S * self._source.random(), self._copied, limb, save)

    def _copied(self, limb: SimLimb, save: Save, failure: str = "") -> None:
        if limb.copying is not save or not self.alive or self.stalled:
            return
        limb.copying = None
        failure = failure or ("no memory is left" if self._source.random() < COPY_FAILS else "")
        done = CopyFailed(save.number, failure) if failure else CopyTaken(save.number, ("part",), 1000 * STEP_S)
        self.tell_limb(limb.number, done)

    def holds_copy(self, number: int) -> bool:
        copies = [limb.machine.copying.copied for limb in self.limbs]
        return all(copied.number == number and not copied.failure for copied in copies)

    # ------------------------------------------------------------------------------------------------- rings entered

    def _enter(self, said: list[list[Command]]) -> list[list[Command]]:
        """Where all limbs go to a ring: if one finds that its own does not stand, none goes."""
        while goes := [one for commands in said for one in commands if isinstance(one, EnterRing | AdoptRing)]:
            if len(goes) < len(self.limbs) or len({one.assignment for one in goes}) > 1:
                self._complain(f"its limbs go to different rings: {said}")
            generation = goes[0].assignment.place.generation
            lacks = [self._lacks(limb, one) for limb, one in zip(self.limbs, goes, strict=True)]
            for limb in self.limbs[1:]:
                self._job.limb_rings.go(self, limb.number, generation)
            if not any(lacks):
                break
            self._job.next_rings.release(self, generation)
            self._job.note(f"{self.id} does not come to ring {generation}: limbs {lacks} have none")
            answers: list[Input] = [RingFailed("it does not stand") if lack else RingFormed() for lack in lacks]
            rows = [limb_votes.answer_row(one) for one in answers]
            said = [
                [one for one in commands if not isinstance(one, EnterRing | AdoptRing)]
                + limb.handle(limb_votes.agreed(answer, rows, sits=limb.machine.sits))
                for limb, answer, commands in zip(self.limbs, answers, said, strict=True)
            ]
        return said

    def _lacks(self, limb: SimLimb, goes: EnterRing | AdoptRing) -> bool:
        assignment = goes.assignment
        if isinstance(goes, EnterRing):
            return False
        generation = assignment.place.generation
        if not limb.number:
            return not (assignment.prepared and self._job.next_rings.stands_at(self, generation))
        return not (assignment.prepared and self._job.limb_rings.stands_at(self, limb.number, generation))

    # ------------------------------------------------------------------------------------------------------- orders

    def deliver(self, orders: Orders) -> float:
        """The daemon tells its limbs; return how late the first one hears of it."""
        for limb in self.limbs:
            limb.on_the_way.append(orders)
        for limb in self.limbs[1:]:
            late = self._lateness()
            if late:
                self._job.after(late, self._arrive, limb, orders)
            else:
                self._arrive(limb, orders)
        return self._lateness()

    def _lateness(self) -> float:
        return self._source.choice((0.0, 0.0, 0.0, 0.001, HEARD_S)) * self._source.random()

    def _arrive(self, limb: SimLimb, orders: Orders) -> None:
        if not any(one is orders for one in limb.on_the_way) or not self.alive or self.stalled or limb.gone:
            return
        self._note_heard(limb, orders)
        commands = limb.handle(OrdersHeard(orders))
        if limb.number:
            self._carry_out(limb, commands)
        else:
            self._job.shells.carry_out(self, commands)

    @staticmethod
    def _note_heard(limb: SimLimb, orders: Orders) -> None:
        limb.on_the_way = [one for one in limb.on_the_way if one is not orders]
        limb.recent = [*limb.recent[-20:], orders]
        if limb.is_behind(orders):
            limb.heard = orders

    def orders_read(self) -> Orders | None:
        """Return the newest orders that any limb has heard, once all have; None: some hear of them by a new daemon."""
        stamps = [NO_ORDERS if one.heard is None else (one.heard.term, one.heard.version) for one in self.limbs]
        wanted = limb_votes.newest_orders([limb_votes.row(Occasion.ORDERS, *stamp) for stamp in stamps])
        if wanted == NO_ORDERS:
            return None
        for limb in self.limbs:
            for one in list(limb.on_the_way):
                if (one.term, one.version) <= wanted:
                    self._arrive(limb, one)
        held = [self._held(limb, wanted) for limb in self.limbs]
        if not limb_votes.all_hold([limb_votes.row(Occasion.HELD, int(one is not None)) for one in held]):
            return None
        return held[0] or next(one for one in held if one is not None)

    def orders_waiting(self) -> Orders | None:
        return self.orders_read()

    @staticmethod
    def _held(limb: SimLimb, wanted: tuple[int, int]) -> Orders | None:
        return next((one for one in reversed(limb.recent) if (one.term, one.version) == wanted), None)

    def newest_heard(self, orders: Orders) -> Orders:
        return self.limbs[0].heard or orders

    def lose_daemon(self) -> None:
        """What the daemon that dies was about to tell does not come to some limbs."""
        for limb in self.limbs:
            if limb.on_the_way and self._source.random() < 0.5:
                limb.on_the_way = []

    # ------------------------------------------------------------------------------------------------- its daemon

    def hear(self) -> bool:
        self.told = self.machine.status
        for limb in self.limbs[:1]:
            limb.told = self.told
        return self._combine()

    def _combine(self) -> bool:
        return self.observed.hear(limb_votes.combined([limb.told for limb in self.limbs] or [self.machine.status]))

    def _catch_up_words(self) -> None:
        for limb in self.limbs:
            limb.told = limb.machine.status
        self.hear()

    def present(self) -> None:
        """The limbs greet another daemon, which tells all of them the newest orders."""
        if self.alive:
            self._catch_up_words()
        super().present()
        for limb in self.limbs:
            if self.orders is not None and limb.is_behind(self.orders):
                limb.on_the_way.append(self.orders)
                self._arrive(limb, self.orders)
        if self.alive and (self.waits or self.is_held):
            self._job.shells.look(self)

    def lose_limb(self) -> None:
        """A process dies; the others wait for it, until their daemon sees that it has."""
        dead = self._source.choice(self.limbs)
        self.stalled = True
        self._job.rings.missed(self)
        self._job.after(SEEN_S * self._source.random(), self._end_with, dead)
        self._job.after(ENDED_S, self._is_ended, dead)

    def hold_rest(self) -> None:
        if self._job.remnants and not any(limb.told.over for limb in self.limbs) and self._source.random() < HOLDS:
            self.left = tuple(sorted(limb.number for limb in self._some()))

    def observation(self, step_time_s: float) -> Observation:
        seen = super().observation(step_time_s)
        if not self.left:
            return seen
        states = (HELD if limb.number in self.left else "gone" for limb in self.limbs)
        return msgspec.structs.replace(seen, limbs=tuple(LimbSeen(1, state, self.step) for state in states))

    def copies_of_rest(self, orders: Orders) -> str:
        """Let held limbs hear that they are to copy what they have. Return why they cannot; empty: they copy."""
        save = orders.save
        assert save is not None
        for number in save.limbs:
            limb = self.limbs[number]
            if not any(isinstance(one, TakeCopy) for one in limb.handle(OrdersHeard(orders))):
                return limb.machine.copying.copied.failure or "it does not answer"
        return ""

    def _end_with(self, dead: SimLimb) -> None:
        dead.gone = True
        if self.alive and limb_votes.ends_worker(dead.told, others=True):
            self._job.faults.die(self)
            self.hold_rest()
            self.observed.died(KILLED)
            self._job.daemons.stir(self)

    def _is_heard(self, asked: SimLimb) -> None:
        if self.alive and not self.stalled and not self.leaving:
            self._complain(f"limb {asked.number} was asked to leave, and its daemon does not know")

    def _is_ended(self, dead: SimLimb) -> None:
        if self.alive:
            self._complain(f"limb {dead.number} is dead, and the others live on")

    # ------------------------------------------------------------------------------------------------------- samples

    def read_on(self) -> None:
        before = set(self.read)
        super().read_on()
        for limb in self.limbs[1:]:
            limb.leases.forget_before(limb.machine.step)
            for step in sorted(set(self.read) - before):
                lease = limb.leases.wanted_at(step)
                if self.read[step] and (lease is None or lease.between(step - 1, step) != self.read[step]):
                    self._complain(f"limb {limb.number} has {lease} for step {step}, where the first has others")
                if lease is not None:
                    limb.leases.hand_out(lease, step)

    # ------------------------------------------------------------------------------------------------ what must hold

    def _are_alike(self, said: Sequence[Sequence[Command]]) -> None:
        """Check that all limbs have done the same steps in the same rings, and do the same next."""
        does = [[_what(command) for command in commands if not isinstance(command, ASIDE)] for commands in said]
        if any(one != does[0] for one in does):
            self._complain(f"its limbs go on differently: {does}")
        at = [_whereabouts(limb.machine) for limb in self.limbs]
        if any(one != at[0] for one in at):
            self._complain(f"its limbs are at {at}")

    def _complain(self, complaint: str) -> None:
        self._job.checks.violated("limbs", f"{self.id}: {complaint}")


def _what(command: Command) -> object:
    """What limbs do alike; each has a ring, and an address, of its own."""
    match command:
        case EnterRing() | AdoptRing():
            return command.assignment
        case EndScript() | Fail():
            return type(command)
        case SendState() | FetchState():
            return type(command), command.portion
        case _:
            return command


def _whereabouts(machine: WorkerMachine) -> tuple[object, ...]:
    assignment = machine.assignment
    return (
        machine.state.value,
        machine.generation,
        machine.step,
        # In training it is found out at the vote, and there is none any more where all leave.
        machine.void is not None and machine.state not in {TrainerState.TRAINING, *ENDING},
        machine.model.is_awaited,
        machine.has_state,
        None if assignment is None else assignment.place.generation,
        machine.has_share,
    )
