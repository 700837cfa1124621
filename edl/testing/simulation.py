"""A whole job in one thread on a manual clock: the real machines of the leader and of the workers, no network.

Owns: time, messages and what can go wrong with both. Does not own: what a trainer does (`edl.testing.shells`), what is
asked of the job (`edl.testing.requests`), or any decision: those are `edl.core`'s, and finding them wrong is what this
is for (`edl.testing.checks`).

Everything that happens is an event with a time of its own: a call arrives, a write is done, a ring takes a step. Every
message may be late, come twice, or be overtaken. All chance comes from one seed, so that a seed always tells the same
story.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

import msgspec

from edl.core.job.deadlines import Deadlines
from edl.core.job.inputs import Command, Input, Reported, TookOver, Vanished
from edl.core.job.lead_times import LeadTimes
from edl.core.job.machine import JobMachine, new_record
from edl.core.job.orders import OrderBook
from edl.core.worker.inputs import (
    LeaveWanted,
    OrdersHeard,
    StillWaiting,
)
from edl.core.worker.moves import are_newer, attention_step
from edl.core.worker.states import TrainerState
from edl.protocol.assignment import Assignment
from edl.protocol.data import DataSpec
from edl.protocol.job import OVER, JobState, Record, WorkerState
from edl.protocol.job_policy import Batching, JobPolicy
from edl.protocol.messages import Phase, Register
from edl.protocol.saving import Checkpointing, Resumed
from edl.testing.beginnings import Beginnings
from edl.testing.checks import Checks
from edl.testing.faults import Moment, Planned, SimFault
from edl.testing.leading import TICK_S, SimLeader
from edl.testing.meetings import Meetings
from edl.testing.migrations import Migrations
from edl.testing.models import Model
from edl.testing.musters import Musters
from edl.testing.next_rings import NextRings
from edl.testing.node import RecordNode
from edl.testing.requests import REACH_S, SimRequests
from edl.testing.rings import STEP_S, STEP_TIMEOUT_S, Rings
from edl.testing.savings import Savings, SimStore
from edl.testing.shells import SimShells
from edl.testing.worker import KILLED, SESSION_S, SimWorker

REPORT_S = 0.02
BOOT_S = 0.8  # after which a newcomer is taken for hanging
DEADLINES = Deadlines(
    BOOT_S, seat_s=2 * STEP_TIMEOUT_S, step_s=STEP_TIMEOUT_S, moments_s=STEP_TIMEOUT_S / 4, away_s=2 * TICK_S
)
STATE_BYTES = (0, 0, 10**7, 10**8, 10**9)
LATE_S = 0.06  # a late message: several steps
LATE = 0.05  # so many are
GRACE_S = 0.05  # until a script that does not hear of its job's end is interrupted
OF_THE_JOB = (SimFault.JOIN, SimFault.CHANGE_LEADER, SimFault.CRASH_LEADER, SimFault.SCALE, SimFault.AWAY)
AWAY_S = 2 * SESSION_S  # at most


@dataclass(frozen=True, slots=True)
class Inheritance:
    """What a life of a job has from the one before."""

    resumed: Resumed
    model: Model
    trained: frozenset[tuple[int, int]]  # samples, by epoch and position
    store: SimStore


class SimJob:
    """One job, driven by a seed."""

    late = LATE  # 0.0: no message is late
    shells_class = SimShells  # another one sees, and may disturb, what trainers do

    def __init__(  # noqa: PLR0913 - keywords, all with defaults but the seed
        self,
        spec: DataSpec | None,
        *,
        seed: int,
        steps: int = 0,
        workers: int = 2,
        minimum: int = 1,
        maximum: int = 0,
        lease_s: float = 0.6,
        batching: Batching | None = None,
        prepares: float = 0.0,
        sends: float = 0.0,
        checkpointing: Checkpointing | None = None,
        inherits: Inheritance | None = None,
        spread: bool = False,
    ) -> None:
        """`prepares`: how many of its workers can form a ring beside another; `sends`: state beside steps, likewise.

        `inherits`: it is the next life of a job. `spread`: it begins on two hosts, of which one may be left.
        """
        self.spec = spec  # None: scripts bring data of their own, and end after `steps`
        self.steps = steps
        self.random = random.Random(seed)  # noqa: S311 - repeatable is the point
        self._depths = random.Random(f"pipelines {seed}")  # noqa: S311
        self._kinds = random.Random(f"rings {seed}")  # noqa: S311
        self.senders = random.Random(f"senders {seed}")  # noqa: S311
        self.state_bytes = self.senders.choice(STATE_BYTES)  # of what goes to newcomers over several steps
        self._prepares, self._sends = prepares, sends
        self.now = 0.0
        self.checkpointing = checkpointing or Checkpointing()
        self.life = self.checkpointing.life
        self.inherits = inherits
        self.begins_with = None if inherits is None else inherits.model
        self.whole_steps = steps + (0 if inherits is None else inherits.resumed.step)
        self.savings = Savings(self, seed, None if inherits is None else inherits.store)
        self.lead_times = LeadTimes(lease_s=lease_s, notice_s=0.03, loss_s=0.01, hold_s=lease_s / 5)
        self.durable = new_record("sim", 0.0)
        self.term = 1
        self.workers: dict[str, SimWorker] = {}
        self.struck: Counter[SimFault] = Counter()
        self.events = 0
        self.transcript: list[str] = []
        self.shells = self.shells_class(self)
        self.requests = SimRequests(self)
        self.meetings = Meetings(self)
        self.beginnings = Beginnings(self)
        self.rings = Rings(self)
        self.next_rings = NextRings(self, seed)
        self.musters = Musters(self)
        self.migrations = Migrations(self, BOOT_S, spread=spread)
        self.checks = Checks(self)
        self.node = RecordNode(self, seed)
        self._roll: set[str] = set()  # whose daemons have a session
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._number = 0
        policy = JobPolicy(batching=batching or Batching(), checkpointing=self.checkpointing)
        self._limits = workers, minimum, maximum
        self._policy = policy
        self.cuts = 0  # of leases, anew
        self._waiting: dict[Moment, list[Planned]] = {}
        self._counts: Counter[Moment] = Counter()
        self.calm_at = 0.0  # when the last fault struck
        self.leader = SimLeader(self, self.term)
        for _ in range(workers):
            self._join()
        self.after(2 * SESSION_S, self._start_for_the_first, self.durable)

    # ---------------------------------------------------------------------------------------------------- outside

    def plan(self, faults: list[Planned]) -> None:
        """These will strike, each in its own time."""
        for fault in faults:
            if isinstance(fault.at, Moment):
                self._waiting.setdefault(fault.at, []).append(fault)
            else:
                self.after(fault.at, self.inflict, fault.fault)

    def run(self, *, within_s: float = 60.0) -> None:
        """Until the job is over and all have heard of it. Raises Violation with the transcript.

        After a fault, and after each step with samples never trained before, the next has to come in `within_s`.
        """
        self._play(within_s)
        if not self.hangs():
            self.checks.over()

    def run_until(self, until_s: float, *, within_s: float = 60.0) -> None:
        """Until then all is as in `run`; then all processes of the job are gone."""
        self._play(within_s, until_s)

    def _play(self, within_s: float, until_s: float = math.inf) -> None:
        while self.now < until_s and self._heap and not self._is_quiet() and not self._hangs_for_good():
            self.now, _, act, arguments = heappop(self._heap)
            self.events += 1
            act(*arguments)
            if self.now > max(self.calm_at, self.checks.moved_on_at) + within_s:
                waiting = {
                    w.id: w.doing.value for w in self.workers.values() if w.alive and w.doing is not TrainerState.OVER
                }
                self.checks.violated("I12", f"no sample trained for {within_s:g} s, and not over: {waiting}")

    def _is_quiet(self) -> bool:
        return self.durable.state in OVER and all(
            worker.doing is TrainerState.OVER or worker.stalled or not worker.alive for worker in self.workers.values()
        )

    def disturb(self) -> None:
        """What was asked for before may come about later."""
        self.calm_at = max(self.calm_at, self.now)

    def _hangs_for_good(self) -> bool:
        return self.now > self.calm_at + REACH_S and self.hangs()

    def hangs(self) -> bool:
        """All that train hang, at the same time: none is left to notice."""
        sitting = [worker for worker in self.workers.values() if worker.alive and worker.sits]
        return bool(sitting) and all(worker.stalled for worker in sitting)

    @property
    def end(self) -> str:
        """How it ended, in a word or a few."""
        reason = self.durable.reason.partition(";")[0]
        if self.durable.state is JobState.FAILED:
            return f"failed: {' '.join(word for word in reason.split() if not word.isdigit())}"
        return self.durable.state.value if self.durable.state in OVER else "all that train hang"

    def story(self, complaint: str, lines: int = 80) -> str:
        """A complaint with what led there."""
        return "\n".join([complaint, *self.transcript[-lines:]])

    def note(self, line: str) -> None:
        self.transcript.append(f"{self.now:8.3f} {line}")

    def after(self, delay: float, act: Callable[..., object], *arguments: object) -> None:
        self._number += 1
        heappush(self._heap, (self.now + delay, self._number, act, arguments))

    def new_machine(self, record: Record, term: int) -> JobMachine:
        """What leads."""
        return CheckedMachine(self, record, term)

    # ----------------------------------------------------------------------------------------------------- faults

    def happens(self, moment: Moment, worker: SimWorker | None = None) -> None:
        """This moment has come: a fault may have waited for it."""
        waiting = self._waiting.get(moment)
        if not waiting:
            return
        self._counts[moment] += 1
        for fault in [fault for fault in waiting if fault.count == self._counts[moment]]:
            waiting.remove(fault)
            if moment in (Moment.FORMING, Moment.STEPPING, Moment.LAST_STEP, Moment.SENDING):
                self.inflict(fault.fault, worker)  # in the very middle
            else:
                self.after(self.random.random() * 0.004, self.inflict, fault.fault, worker)

    def inflict(self, fault: SimFault, worker: SimWorker | None = None) -> None:
        """Do it now, to `worker` or to any other."""
        if self.durable.state in OVER:
            return
        living = [one for one in self.workers.values() if one.alive and one.doing is not TrainerState.OVER]
        victim = worker if worker in living else self.random.choice(living) if living else None
        self.calm_at = max(self.now, self.node.away_until)
        self.struck[fault] += 1
        strikes = victim is not None and fault not in OF_THE_JOB
        self.note(f"FAULT {fault.value}{f': {victim.id}, {victim.doing.value}' if strikes and victim else ''}")
        match fault:
            case SimFault.JOIN:
                self._join()
            case SimFault.CHANGE_LEADER:
                self._change_leader(dies=False)
            case SimFault.CRASH_LEADER:
                self._change_leader(dies=True)
            case SimFault.SCALE:
                self.requests.ask(self.random.randint(1, 4))
            case SimFault.AWAY:
                self.calm_at = self.node.away_until = self.now + AWAY_S * self.random.random()
            case _ if victim is not None:
                self._strike(fault, victim)
            case _:
                pass

    def _strike(self, fault: SimFault, victim: SimWorker) -> None:
        match fault:
            case SimFault.LEAVE:
                self.shells.tell(victim, LeaveWanted())
            case SimFault.KILL:
                self._die(victim)
                victim.account.died(KILLED)
                self.stir(victim)
            case SimFault.VANISH:
                self._die(victim)
                victim.daemon = 0
                self.after(SESSION_S, self._expire, victim)
            case SimFault.STALL:
                victim.stalled = True
                self.rings.missed(victim)
            case SimFault.CUT_OFF:
                victim.cut_off = True
            case SimFault.CUT_STATE:
                victim.unsent = True
            case SimFault.DEAFEN:
                victim.deaf_until = self.now + 20 * STEP_S
            case SimFault.RENEW_DAEMON if victim.daemon:
                self._renew(victim)
            case _:
                pass

    def _die(self, worker: SimWorker) -> None:
        worker.alive = False
        self.rings.missed(worker)
        self.next_rings.missed(worker)

    def _expire(self, worker: SimWorker) -> None:
        if self._is_away():  # all sessions begin anew when it is back
            self.after(self.node.away_until - self.now + SESSION_S, self._expire, worker)
            return
        self._roll.discard(worker.id)
        self.call(Vanished(worker.id, "its daemon's session ended"))
        self.after(2 * SESSION_S, self._is_missed, worker, self.calm_at)

    def _is_away(self) -> bool:
        return self.now < self.node.away_until

    def _is_missed(self, worker: SimWorker, calm_at: float) -> None:
        """By the leader, unless something else has happened meanwhile."""
        if calm_at == self.calm_at and self.durable.state not in OVER and self.leader.alive:
            self.checks.missed(worker)

    def _renew(self, worker: SimWorker) -> None:
        """Another daemon registers, and is told the trainer's story a moment later."""
        worker.daemon += 1
        worker.sent, worker.presented = None, False
        self.meetings.give_up(worker, "its daemon died")
        self.next_rings.give_up(worker)
        self._present(worker, worker.daemon)

    def _present(self, worker: SimWorker, daemon: int) -> None:
        """Said again until a leader has taken it; before that, the daemon reports nothing."""
        if worker.daemon == daemon and not worker.presented and self.durable.state not in OVER:
            self.call(self._registration(worker), lambda _: self._presented(worker, daemon))
            self.after(SESSION_S, self._present, worker, daemon)

    def _presented(self, worker: SimWorker, daemon: int) -> None:
        if worker.daemon == daemon and not worker.presented:
            self.call(Reported(worker.id, msgspec.structs.replace(worker.present(), at=self.now)))
            self.savings.tell_again(worker)
            self.stir(worker)

    def _change_leader(self, *, dies: bool) -> None:
        old = self.leader
        if dies:
            old.crash(written=self.random.random() < 0.5)
            self.after(0.02 + self.random.random() * SESSION_S, self._elect, old)
            return
        for worker in self._listeners():  # a stale leader goes on answering for a while
            self.after(self.random.random() * LATE_S, self._hear, worker, old.book)
        self._elect(old)

    def _elect(self, old: SimLeader) -> None:
        """Another leads, unless yet another does already."""
        if self.leader is not old:
            return
        if self._is_away():
            self.after(self.node.away_until - self.now + LATE_S * self.random.random(), self._elect, old)
            return
        self.term += 1
        self.leader = SimLeader(self, self.term)
        self.leader.receive(TookOver(frozenset(self._roll)))
        for worker in self.workers.values():
            worker.sent = None  # a worker that finds a new leader tells it everything again
            self.stir(worker)

    def start_worker(self, host: str) -> None:
        """What starts workers there was asked for one more."""
        self._join(host)

    def _join(self, host: str = "") -> None:
        prepares, sends = self._kinds.random() < self._prepares, self.senders.random() < self._sends
        worker = SimWorker(
            f"w{len(self.workers)}",
            host or self.migrations.host_of(len(self.workers)),
            prepares=prepares,
            sends_state=sends,
        )
        worker.answering = bool(host)
        worker.ahead = self._depths.choice((1, 1, 3, 1_000_000))
        if self.spec is not None and not asks_by_epoch(self.spec):
            worker.wanted = self.spec.epochs
        worker.model = self.begins_with or worker.model
        self.workers[worker.id] = worker
        self._roll.add(worker.id)
        self._register(worker)

    def _register(self, worker: SimWorker) -> None:
        """Said again until a leader has taken it, or has not."""
        if worker.daemon and worker.alive and not worker.admitted:
            self.call(self._registration(worker), lambda taken: self._registered(worker, taken))
            self.after(SESSION_S, self._register, worker)

    def _registration(self, worker: SimWorker) -> Register:
        resumed = None if self.inherits is None else self.inherits.resumed
        limits, answering = self._limits, worker.answering
        return Register(worker.identity(), *limits, answering, self._policy, resumed=resumed)

    def _registered(self, worker: SimWorker, taken: bool) -> None:
        if taken:
            self.checks.writing.registered(worker.id)
        if taken and not worker.admitted:
            worker.admitted = True
            self.stir(worker)
            self.after(self.delay(), self._hear, worker, self.leader.book)
        elif not taken and not worker.admitted:
            self.shells.fail(worker, "was refused")

    def under_way(self) -> list[SimWorker]:
        """Started, and not let in yet."""
        coming = (worker for worker in self.workers.values() if worker.alive and not worker.admitted)
        return [worker for worker in coming if worker.doing is not TrainerState.OVER]

    def on_their_way(self, host: str) -> int:
        """Started there, and not let in yet."""
        return sum(worker.host == host for worker in self.under_way())

    def start_missing(self) -> None:
        """What `edl run` does when its job is asked to grow."""
        outgoing = (WorkerState.LEAVING, WorkerState.DONE)
        present = sum(member.state not in outgoing for member in self.durable.members)
        present += len(self.under_way())
        for _ in range((self.durable.target or 1) - present):
            self._join()

    # ------------------------------------------------------------------------------------------------ a leader's world

    def delay(self) -> float:
        """How long a message is under way: some for several steps."""
        chance = self.random.random()
        return 0.0005 + 0.002 * chance if chance < 1 - self.late else LATE_S * self.random.random()

    def call(self, said: Input, answer: Callable[[bool], None] | None = None) -> None:
        """To the leader that is there when it arrives."""
        self.after(self.delay(), self._arrive, said, answer)
        if self.random.random() < 0.03:  # tried again, though the first call got through
            self.after(self.delay() + LATE_S * self.random.random(), self._arrive, said, None)

    def _arrive(self, said: Input, answer: Callable[[bool], None] | None) -> None:
        if self.leader.alive:
            self.leader.receive(said, answer)

    def decided(self) -> None:
        """The leader is about to write."""
        self.happens(Moment.DECIDING)

    def make_durable(self, record: Record) -> None:
        before, self.durable = self.durable, record
        self.checks.durable(before, record)
        self.migrations.durable(before, record)
        if before.rebatch is not None and record.rebatch is None and record.ledger is not before.ledger:
            self.cuts += record.plan is None
        if record.plan is not None and (before.plan is None or before.plan.generation != record.plan.generation):
            self.happens(Moment.SWITCHING, self.workers[self.random.choice(record.plan.roster)])
        if record.saves > before.saves:
            self.happens(Moment.SAVING)
        members = {member.identity.id: member.state for member in record.members}
        for worker in self.workers.values():
            if worker.doing is TrainerState.OVER and members.get(worker.id) in (None, WorkerState.DONE):
                self._roll.discard(worker.id)
        for member in record.members:
            if member.state is WorkerState.LEAVING:
                self.happens(Moment.LEAVING, self.workers[member.identity.id])
        if record.arrivals and not record.generation and record.plan is None:
            self.after(SESSION_S, self._start_for_the_first, record)
        self.note(f"record {record.version}: {_short(record)}")

    def _start_for_the_first(self, record: Record) -> None:
        """The first generation waits for as many as were asked for: what started those that died starts others.

        Again and again, as those may die before the job has heard of them.
        """
        if self.durable is record:
            self.start_missing()
            self.after(SESSION_S, self._start_for_the_first, record)

    def publish(self, leader: SimLeader, *, pressing: bool) -> None:
        """All who wait for orders get them, at once or when their calls end."""
        for worker in self._listeners():
            held = 0.0 if pressing else self.lead_times.hold_s * self.random.random()
            late = max(held, worker.deaf_until - self.now)
            self.after(late + self.delay(), self._hear, worker, leader.book)
            if self.random.random() < 0.03:
                self.after(late + self.delay() + LATE_S, self._hear, worker, leader.book)

    def _listeners(self) -> list[SimWorker]:
        """Whose daemons ask for orders."""
        listening = (one for one in self.workers.values() if one.alive and one.daemon and one.admitted)
        return [worker for worker in listening if worker.doing is not TrainerState.OVER]

    # ------------------------------------------------------------------------------------------------ a worker's world

    def stir(self, worker: SimWorker) -> None:
        """There is something to report: its daemon does so soon."""
        if worker.daemon and worker.admitted and worker.presented and not worker.report_due:
            worker.report_due = True
            self.after(REPORT_S * self.random.random(), self._report, worker)

    def _report(self, worker: SimWorker) -> None:
        worker.report_due = False
        if worker.phase is Phase.DONE and self.savings.is_storing(worker):
            return  # it says so when that is done
        self.checks.accounts.reports(worker)
        observation = worker.observation(STEP_S)
        if worker.daemon and worker.presented and observation != worker.sent:
            worker.sent = observation
            self.call(Reported(worker.id, msgspec.structs.replace(observation, at=self.now)))

    def _hear(self, worker: SimWorker, book: OrderBook) -> None:
        """Orders arrive at a daemon, which hands them to its trainer."""
        orders = book.orders(worker.id)
        if not are_newer(orders, worker.orders) or not worker.alive or not worker.daemon:
            return
        self.checks.heard(worker, orders, book.record)
        before, worker.orders = worker.orders, orders
        self.musters.follow(worker, orders.summons, book.record.muster.roster if book.record.muster else ())
        if worker.stalled:  # all of the process, say
            return
        worker.attention = attention_step(worker.generation, orders, worker.account.copied[0])
        if worker.assignment is not None and _generation(orders.assignment) != _generation(worker.assignment):
            self.meetings.give_up(worker, "its ring was given up")
        self.shells.tell(worker, OrdersHeard(orders))
        if orders.going and not (before is not None and before.going):
            self.stir(worker)
        if orders.resumable:
            self.after(GRACE_S, self._interrupt, worker)
        self.next_rings.heard(worker, orders)
        if before is not None:  # another thread has looked at these earlier, and comes later
            self.shells.tell(worker, OrdersHeard(before))
        if worker.sits and worker.machine.has_share:
            self.rings.arm(self.rings.rings[worker.generation])
        if worker.waits or worker.is_held:
            self.shells.look(worker)
        elif worker.is_hungry():
            self.shells.tell(worker, StillWaiting(orders))

    def _interrupt(self, worker: SimWorker) -> None:
        """Its script is at something of its own, and its job is gone."""
        if worker.alive and not worker.stalled and worker.doing is TrainerState.TRAINING:
            self.shells.end_script(worker)


class CheckedMachine(JobMachine):
    """The real machine; after each input, it is looked at."""

    def __init__(self, job: SimJob, record: Record, term: int) -> None:
        super().__init__(record, job.lead_times, DEADLINES)
        self._checks = job.checks
        self._term = term

    def handle(self, happened: Input, now: float, *, more: bool = False) -> list[Command]:
        follows = super().handle(happened, now, more=more)
        self._checks.handled(self, self._term, happened, follows)
        return follows


def asks_by_epoch(spec: DataSpec) -> bool:
    """Each pass of the script is one epoch, and asks for it when it begins."""
    return spec.open_ended or (spec.by_sample and spec.whole_epochs)


def _generation(assignment: Assignment | None) -> int:
    return 0 if assignment is None else assignment.place.generation


def _short(record: Record) -> str:
    plan = None if record.plan is None else (record.plan.generation, record.plan.roster, record.plan.after_step)
    call = f" call {record.muster.number} ring {record.muster.generation}" if record.muster is not None else ""
    states = " ".join(f"{member.identity.id}:{member.state.value}" for member in record.members)
    state = record.state.value if record.state is not JobState.FAILED else f"failed ({record.reason})"
    return f"{state} target {record.target} generation {record.generation} {record.roster} plan {plan}{call} {states}"
