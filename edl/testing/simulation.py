"""A whole job in one thread on a manual clock: the real leader's machine, the real decisions of trainers, no network.

Owns: simulated workers, rings and deliveries, and what can go wrong with each. Does not own: any decision; those are
`edl.core`'s, and finding them wrong is what this is for.

Time passes in ticks. In each, in random order: reports and orders arrive or are late, rings make a step, workers look
at their orders, rings form, faults happen. A step of a ring is one set of samples; it counts as trained once the ring's
survivors agree on it (I5).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from edl.clock import ManualClock
from edl.core.horizon import Horizon
from edl.core.inputs import Command, Registered, Reported, TookOver, Vanished
from edl.core.job import OVER, JobMachine, new_record
from edl.core.orders import OrderBook
from edl.core.seat import Enter, Leave, Seat, Stay, Stop, next_move
from edl.protocol.assignment import Assignment, Orders, Share
from edl.protocol.data import DataSpec
from edl.protocol.job import Identity
from edl.protocol.messages import Observation, Phase

TICK_S = 0.01
Sample = tuple[int, int]  # epoch, position


class Fault(StrEnum):
    """What can be done to a job."""

    JOIN = "join"
    LEAVE = "leave"
    KILL = "kill"
    CHANGE_LEADER = "change leader"


@dataclass(slots=True)
class SimWorker:
    """A trainer and its daemon."""

    id: str
    phase: Phase = Phase.BOOTING
    generation: int = 0
    failed_generation: int = 0
    step: int = 0
    after_step: int = 0  # the step that its generation took over after
    opened: bool = False
    leaving: bool = False
    alive: bool = True
    ready_at: float = 0.0
    orders: Orders | None = None
    share: Share | None = None
    leases_of: int = 0
    entering: Assignment | None = None
    reported: list[Observation] = field(default_factory=list)

    @property
    def waiting(self) -> bool:
        return self.phase in (Phase.READY, Phase.BROKEN) or (self.generation == 0 and self.phase is Phase.BOOTING)

    def observation(self, spec: DataSpec) -> Observation:
        return Observation(
            phase=self.phase,
            generation=max(self.generation, self.failed_generation),
            step=self.step,
            leases_of=self.leases_of,
            step_time_s=TICK_S,
            data=spec if self.opened else None,
            pause=None,
            leaving=self.leaving,
            reason="",
        )


@dataclass(slots=True)
class SimRing:
    """The members of one generation, and what they have trained since it was formed."""

    generation: int
    members: tuple[str, ...]
    steps: dict[int, tuple[Sample, ...]] = field(default_factory=dict)


class SimJob:
    """One job, driven by a seed."""

    def __init__(self, spec: DataSpec, *, seed: int, workers: int = 2) -> None:
        self.spec = spec
        self.random = random.Random(seed)  # noqa: S311 - repeatable is the point
        self.clock = ManualClock()
        self.machine = JobMachine(new_record("sim", 0.0), Horizon(lease_s=0.6, notice_s=0.05))
        self.durable = self.machine.record
        self.term = 1
        self.workers: dict[str, SimWorker] = {}
        self.rings: dict[int, SimRing] = {}
        self.trained: Counter[Sample] = Counter()
        self.settled = 0  # steps up to this one are in `trained`
        self.transcript: list[str] = []
        self._np = workers
        for _ in range(workers):
            self.inflict(Fault.JOIN)

    # ---------------------------------------------------------------------------------------------------- outside

    def inflict(self, fault: Fault) -> None:
        """Do it now, to a random worker."""
        living = [worker for worker in self.workers.values() if worker.alive]
        match fault:
            case Fault.JOIN:
                self._join()
            case Fault.LEAVE if len(living) > 1:
                self.random.choice(living).leaving = True
            case Fault.KILL if len(living) > 1:
                self._kill(self.random.choice(living))
            case Fault.CHANGE_LEADER:
                self._change_leader()
            case _:  # not possible now
                return
        self._note(f"{fault.value}: {[worker.id for worker in living]}")

    def run(self, plan: Callable[[SimJob], None], *, ticks: int = 20_000) -> None:
        """Until the job is over; `plan` is asked in every tick. Raises AssertionError with the transcript."""
        for _ in range(ticks):
            if self.durable.state in OVER:
                return
            plan(self)
            self.tick()
        raise AssertionError(self.story(f"not over after {ticks} ticks"))

    def tick(self) -> None:
        """Let a little time pass."""
        self.clock.advance(TICK_S)
        acts: list[Callable[[], None]] = [self._deliver_reports, self._deliver_orders, self._step_rings, self._move]
        self.random.shuffle(acts)
        for act in acts:
            act()
        self._form_rings()

    def story(self, complaint: str) -> str:
        """A complaint with what led there."""
        return complaint + "\n" + "\n".join(self.transcript[-60:])

    # ---------------------------------------------------------------------------------------------------- faults

    def _join(self) -> None:
        worker = SimWorker(f"w{len(self.workers)}", ready_at=self.clock.now() + self.random.random())
        self.workers[worker.id] = worker
        identity = Identity(worker.id, "host", "127.0.0.1", 1, 2)
        self._feed(Registered(identity, self._np, 1, 0))

    def _kill(self, worker: SimWorker) -> None:
        worker.alive = False
        if self.random.random() < 0.5:
            self._feed(Vanished(worker.id, "killed"))
        else:  # its daemon lives a little longer, and reports
            worker.phase = Phase.FAILED

    def _change_leader(self) -> None:
        self.term += 1
        self.machine = JobMachine(self.durable, self.machine.horizon)
        alive = {worker.id for worker in self.workers.values() if worker.alive or worker.phase is Phase.FAILED}
        for worker in self.workers.values():
            worker.reported.clear()
        self._feed(TookOver(frozenset(alive)))

    # ------------------------------------------------------------------------------------------------ deliveries

    def _feed(self, happened: Registered | Reported | Vanished | TookOver) -> list[Command]:
        commands = self.machine.handle(happened, self.clock.now())
        if self.machine.ledger is not None:
            self.machine.ledger.validate()
        if self.machine.record != self.durable:
            self._note(f"record {self.machine.record.version}: {_short(self.machine)}")
        self.durable = self.machine.record
        return commands

    def _deliver_reports(self) -> None:
        for worker in list(self.workers.values()):
            speaks = worker.alive or worker.phase is Phase.FAILED
            if speaks and self.random.random() < 0.5:
                worker.reported.append(worker.observation(self.spec))
            if worker.reported and self.random.random() < 0.5:
                self._feed(Reported(worker.id, worker.reported.pop(0)))
                del worker.reported[:-3]

    def _deliver_orders(self) -> None:
        book = OrderBook(self.durable, self.term, ("127.0.0.1", 1))
        for worker in self.workers.values():
            if worker.alive and self.random.random() < 0.5:
                worker.orders = book.orders(worker.id)
                self._adopt(worker)

    def _adopt(self, worker: SimWorker) -> None:
        for share in worker.orders.shares if worker.orders else ():
            if (share.generation, share.after_step) == (worker.generation, worker.after_step):
                worker.share, worker.leases_of = share, share.generation

    # ------------------------------------------------------------------------------------------------------ rings

    def _step_rings(self) -> None:
        for ring in self.rings.values():
            members = [self.workers[name] for name in ring.members]
            seated = [w for w in members if w.alive and w.generation == ring.generation and w.phase is Phase.TRAINING]
            if not seated or any(worker.entering for worker in seated):
                continue
            if len(seated) == len(members):
                self._train(ring, seated)
            elif self.random.random() < 0.5:
                for worker in seated:  # a peer is gone: the mini-batch fails, and is void (I8)
                    if (
                        worker.share is not None and worker.share.covered_step > worker.step
                    ):  # else it waits for samples
                        worker.phase = Phase.BROKEN

    def _train(self, ring: SimRing, members: list[SimWorker]) -> None:
        for worker in members:
            worker.opened = True
        step = members[0].step + 1
        if any(worker.step + 1 != step for worker in members):
            raise AssertionError(self.story(f"ring {ring.generation} is not in lockstep"))
        if not all(worker.share and worker.share.covered_step >= step for worker in members):
            self._end_scripts(members, step)
            return
        samples = tuple(sample for worker in members for sample in _samples(worker, step))
        total = _total(members, step)
        if {total} != {len(samples)} and {id(w.share) for w in members}:
            raise AssertionError(self.story(f"step {step} has {len(samples)} samples, workers were told {total}"))
        ring.steps[step] = samples
        applied = self._who_applies(members)
        for worker in applied:
            worker.step = step
            self._look(worker)

    def _who_applies(self, members: list[SimWorker]) -> list[SimWorker]:
        """All; but when somebody dies in this very step, only some have applied it."""
        if len(members) > 1 and self.random.random() < 0.002:
            dying = self.random.choice(members)
            self._note(f"{dying.id} dies in step {dying.step + 1}")
            some = [worker for worker in members if self.random.random() < 0.5]
            self._kill(dying)
            return some
        return members

    def _end_scripts(self, members: list[SimWorker], step: int) -> None:
        if all(worker.share and worker.share.last and worker.share.covered_step < step for worker in members):
            for worker in members:
                worker.phase = Phase.DONE
            self._settle(self.rings[members[0].generation], step - 1)

    def _look(self, worker: SimWorker) -> None:
        """What the trainer does inside `notify_batch_end()`, with whatever orders have reached it."""
        if worker.orders is None or worker.entering is not None:
            return
        generation = max(worker.generation, worker.failed_generation)
        move = next_move(Seat(generation, worker.step, worker.waiting), worker.orders)
        match move:
            case Enter(assignment):
                worker.entering = assignment
                worker.phase = Phase.BROKEN if worker.generation else worker.phase
            case Leave() | Stop():
                worker.phase = Phase.DONE
            case Stay():
                if worker.phase is Phase.BOOTING and worker.orders.boot_alone:
                    self._boot(worker)
            case _:
                if worker.phase is Phase.BOOTING and worker.orders.boot_alone:
                    self._boot(worker)

    def _boot(self, worker: SimWorker) -> None:
        if self.clock.now() >= worker.ready_at:
            worker.phase, worker.opened = Phase.READY, True

    def _move(self) -> None:
        for worker in self.workers.values():
            if worker.alive and worker.waiting:
                self._look(worker)

    def _form_rings(self) -> None:
        plans = {w.entering.place.generation: w.entering for w in self.workers.values() if w.alive and w.entering}
        for assignment in plans.values():
            members = [self.workers[name] for name in assignment.members]
            there = [w for w in members if w.alive and w.entering and w.entering.place == _place(assignment, w)]
            if len(there) == len(members):
                self._form(assignment, members)
            elif any(not worker.alive or worker.phase is Phase.DONE for worker in members) or self._superseded(
                assignment
            ):
                for worker in there:  # the rendezvous was closed, or a connection was reset
                    worker.entering = None
                    worker.failed_generation = assignment.place.generation
                    worker.phase = Phase.BROKEN

    def _superseded(self, assignment: Assignment) -> bool:
        plan = self.durable.plan
        return plan is None or plan.generation != assignment.place.generation

    def _form(self, assignment: Assignment, members: list[SimWorker]) -> None:
        with_state = [worker for worker in members if worker.generation]
        step = max((worker.step for worker in with_state), default=0)
        for worker in with_state:
            self._settle(self.rings[worker.generation], step)
        generation = assignment.place.generation
        self.rings[generation] = SimRing(generation, assignment.members)
        for worker in members:
            worker.generation, worker.failed_generation, worker.phase = generation, 0, Phase.TRAINING
            worker.step = worker.after_step = step
            worker.entering, worker.share = None, None
            self._adopt(worker)
        self._note(f"ring {generation} of {assignment.members} formed after step {step}")

    def _settle(self, ring: SimRing, step: int) -> None:
        """The survivors agree on `step`: what was trained up to it counts, what goes beyond is void."""
        for at, samples in ring.steps.items():
            if self.settled < at <= step:
                self.trained.update(samples)
        self.settled = max(self.settled, step)
        ring.steps.clear()

    def _note(self, line: str) -> None:
        self.transcript.append(f"{self.clock.now():8.2f} {line}")


def _place(assignment: Assignment, worker: SimWorker) -> object:
    return None if worker.entering is None or worker.entering.members != assignment.members else worker.entering.place


def _samples(worker: SimWorker, step: int) -> list[Sample]:
    leases = worker.share.leases if worker.share else ()
    found = [lease for lease in leases if lease.after_step < step <= lease.until_step]
    pieces = [piece for lease in found for piece in lease.between(step - 1, step)]
    return [(piece.epoch, position) for piece in pieces for position in range(piece.start, piece.stop)]


def _total(members: list[SimWorker], step: int) -> int:
    """What the workers were told that all of them train in `step`; -1 when they were told different things."""
    told = set()
    for worker in members:
        totals = worker.share.totals if worker.share else ()
        told.add(next((total.samples for total in totals if step <= total.until_step), 0))
    return told.pop() if len(told) == 1 else -1


def _short(machine: JobMachine) -> str:
    record = machine.record
    plan = None if record.plan is None else (record.plan.generation, record.plan.roster, record.plan.after_step)
    states = {member.identity.id: member.state.value for member in record.members}
    covered = None if machine.ledger is None else (machine.ledger.step, machine.ledger.covered_step)
    return f"{record.state.value} generation {record.generation} {record.roster} plan {plan} {states} data {covered}"
