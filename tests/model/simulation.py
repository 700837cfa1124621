"""A whole job in one thread on a manual clock: the real machines of the leader and of the workers, no network.

Owns: time, calls to leaders, what is on record, and when a fault strikes, and whom. Does not own: what a fault does
(`tests.model.fault_actions`), what starts workers (`tests.model.model_launcher`), what their daemons and trainers do
(`tests.model.model_daemons`, `tests.model.model_trainers`), what is asked of the job (`tests.model.model_requests`), or
any decision: those are `edl.core`'s, and finding them wrong is what this is for (`tests.model.model_checks`).

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

from edl.core.job.deadlines import Deadlines
from edl.core.job.lead_times import LeadTimes
from edl.core.job.leader_inputs import Command, Input, TookOver
from edl.core.job.leader_machine import JobMachine, new_record
from edl.core.worker.worker_states import TrainerState
from edl.protocol.checkpoint_record import Checkpointing, Resumed
from edl.protocol.data_nouns import DataSpec
from edl.protocol.job_policy import Batching, JobPolicy
from edl.protocol.record import OVER, JobState, Record, WorkerState
from tests.model.fault_actions import OF_THE_JOB, SimFaults
from tests.model.limb_rings import LimbRings
from tests.model.model_beginnings import Beginnings
from tests.model.model_checkpoints import Savings, SimStore
from tests.model.model_checks import Checks
from tests.model.model_coordinator import RecordNode
from tests.model.model_daemons import HEARD_S, LATE_S, SimDaemons
from tests.model.model_faults import Moment, Planned, SimFault
from tests.model.model_launcher import SimLauncher
from tests.model.model_leader import TICK_S, SimLeader
from tests.model.model_limbs import LimbedWorker
from tests.model.model_meetings import Meetings
from tests.model.model_migrations import Migrations
from tests.model.model_next_rings import NextRings
from tests.model.model_requests import REACH_S, SimRequests
from tests.model.model_rings import NOTICED_S, STEP_TIMEOUT_S, Rings
from tests.model.model_roll_call import RollCalls
from tests.model.model_stream import SimReaders, SimStream
from tests.model.model_trainers import SimShells
from tests.model.model_worker import SimWorker
from tests.model.models import Model

BOOT_S = 0.8  # after which a newcomer is taken for hanging
DEADLINES = Deadlines(
    BOOT_S,
    seat_s=2 * STEP_TIMEOUT_S,
    step_s=STEP_TIMEOUT_S,
    moments_s=STEP_TIMEOUT_S / 4,
    finding_s=NOTICED_S + HEARD_S,
    away_s=2 * TICK_S,
)
STATE_BYTES = (0, 0, 10**7, 10**8, 10**9)
LATE = 0.05  # so many messages are late


@dataclass(frozen=True, slots=True)
class Inheritance:
    """State that a life of a job has from the previous one."""

    resumed: Resumed
    model: Model
    trained: frozenset[tuple[int, int]]  # samples, by epoch and position
    store: SimStore


class SimJob:
    late = LATE  # 0.0: no message is late
    shells_class = SimShells  # another one sees, and may disturb, what trainers do
    daemons_class = SimDaemons  # likewise what their daemons do
    leader_class = SimLeader  # what one term of a leader is
    launcher_class = SimLauncher  # what starts workers does
    faults_class = SimFaults  # and what faults do

    def __init__(
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
        items: int = 0,
        stream: SimStream | None = None,
        processes: int = 1,
        remnants: bool = False,
    ) -> None:
        """`prepares`: how many of its workers can form a ring beside another; `sends`: state beside steps, likewise.

        `inherits`: it is the next life of a job. `spread`: it begins on two hosts, of which one may be left.
        `processes`: of each worker. `remnants`: daemons hold what is left of a worker that was killed.
        `items`: of a stream in one epoch; or the `stream` of the life before.
        """
        self.stream = stream or (SimStream(seed, items, spec.shards) if spec is not None and spec.shards else None)
        self.spec = spec  # None: scripts bring data of their own, and end after `steps`
        self.steps = steps
        self.random = random.Random(seed)
        self.senders = random.Random(f"senders {seed}")
        self.scripts = random.Random(f"scripts {seed}")
        self.remnants = remnants
        self.processes, self.limb_source = processes, random.Random(f"limbs {seed}")
        self.state_bytes = self.senders.choice(STATE_BYTES)  # of what goes to newcomers over several steps
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
        self.faults = self.faults_class(self)
        self.launcher = self.launcher_class(self, seed, prepares=prepares, sends=sends)
        self.daemons = self.daemons_class(self)
        self.shells = self.shells_class(self)
        self.requests = SimRequests(self)
        self.meetings = Meetings(self)
        self.beginnings = Beginnings(self, seed)
        self.rings = Rings(self, seed)
        self.next_rings = NextRings(self, seed)
        self.limb_rings = LimbRings(self)
        self.roll_calls = RollCalls(self)
        self.migrations = Migrations(self, BOOT_S, spread=spread)
        self.checks = Checks(self)
        self.node = RecordNode(self, seed)
        self.readers = SimReaders(self, seed)
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._number = 0
        self.policy = JobPolicy(batching=batching or Batching(), checkpointing=self.checkpointing)
        self.limits = workers, minimum, maximum
        self.cuts = 0  # of leases, anew
        self._waiting: dict[Moment, list[Planned]] = {}
        self._counts: Counter[Moment] = Counter()
        self.calm_at = 0.0  # when the last fault struck
        self.leader = self.leader_class(self, self.term)
        self.launcher.begin(workers)

    # ---------------------------------------------------------------------------------------------------- outside

    def plan(self, faults: list[Planned]) -> None:
        for fault in faults:
            if isinstance(fault.at, Moment):
                self._waiting.setdefault(fault.at, []).append(fault)
            else:
                self.after(fault.at, self.inflict, fault.fault)

    def run(self, *, within_s: float = 60.0) -> None:
        """Run until the job is over and all have heard of it. Raises Violation with the transcript.

        After a fault, and after each step with samples never trained before, the next has to come in `within_s`.
        """
        self._play(within_s)
        if not self.hangs():
            self.checks.ends.over()

    def run_until(self, until_s: float, *, within_s: float = 60.0) -> None:
        """Run until `until_s`; then all processes of the job are gone."""
        self._play(within_s, until_s)

    def _play(self, within_s: float, until_s: float = math.inf) -> None:
        while self.now < until_s and self._heap and not self._is_quiet() and not self._hangs_for_good():
            self.now, _, act, arguments = heappop(self._heap)
            self.events += 1
            act(*arguments)
            if self.now > max(self.calm_at, self.checks.training.moved_on_at) + within_s:
                waiting = {
                    w.id: w.doing.value for w in self.workers.values() if w.alive and w.doing is not TrainerState.OVER
                }
                self.checks.violated("I12", f"no sample trained for {within_s:g} s, and not over: {waiting}")

    def _is_quiet(self) -> bool:
        return self.durable.state in OVER and all(
            worker.doing is TrainerState.OVER or worker.stalled or not worker.alive for worker in self.workers.values()
        )

    def disturb(self) -> None:
        """Restart the time in which earlier requests are to come about."""
        self.calm_at = max(self.calm_at, self.now)

    def _hangs_for_good(self) -> bool:
        return self.now > self.calm_at + REACH_S and self.hangs()

    def hangs(self) -> bool:
        """Tell whether all that train hang at the same time: none is left to notice."""
        sitting = [worker for worker in self.workers.values() if worker.alive and worker.sits]
        return bool(sitting) and all(worker.stalled for worker in sitting)

    @property
    def end(self) -> str:
        reason = self.durable.reason.partition(";")[0]
        if self.durable.state is JobState.FAILED:
            return f"failed: {' '.join(word for word in reason.split() if not word.isdigit())}"
        return self.durable.state.value if self.durable.state in OVER else "all that train hang"

    def samples_of(self, epochs: int) -> int:
        """Count the samples that there are in so many epochs."""
        if self.stream is not None:
            return epochs * sum(self.stream.lengths)
        return 0 if self.spec is None else epochs * self.spec.total

    def story(self, complaint: str, lines: int = 80) -> str:
        return "\n".join([complaint, *self.transcript[-lines:]])

    def note(self, line: str) -> None:
        self.transcript.append(f"{self.now:8.3f} {line}")

    def after(self, delay: float, act: Callable[..., object], *arguments: object) -> None:
        self._number += 1
        heappush(self._heap, (self.now + delay, self._number, act, arguments))

    def new_worker(self, worker: str, host: str, *, prepares: bool, sends_state: bool) -> SimWorker:
        if self.processes == 1:
            return SimWorker(worker, host, prepares=prepares, sends_state=sends_state)
        return LimbedWorker(self, worker, host, processes=self.processes, prepares=prepares, sends_state=sends_state)

    def new_machine(self, record: Record, term: int) -> JobMachine:
        return CheckedMachine(self, record, term)

    # ----------------------------------------------------------------------------------------------------- faults

    def happens(self, moment: Moment, worker: SimWorker | None = None) -> None:
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
        """Inflict the fault now, on `worker` or on any other."""
        if self.durable.state in OVER:
            return
        living = [one for one in self.workers.values() if one.alive and one.doing is not TrainerState.OVER]
        victim = worker if worker in living else self.random.choice(living) if living else None
        self.calm_at = max(self.now, self.node.away_until)
        self.struck[fault] += 1
        whom = "" if fault in OF_THE_JOB or victim is None else f": {victim.id}, {victim.doing.value}"
        self.note(f"FAULT {fault.value}{whom}")
        if fault in OF_THE_JOB:
            self.faults.strike_job(fault)
        elif victim is not None:
            self.faults.strike(fault, victim)

    # ------------------------------------------------------------------------------------------------ a leader's world

    def delay(self) -> float:
        """Draw how long a message is under way, in seconds: some take several steps."""
        chance = self.random.random()
        return 0.0005 + 0.002 * chance if chance < 1 - self.late else LATE_S * self.random.random()

    def call(self, said: Input, answer: Callable[[bool], None] | None = None, *, term: int | None = None) -> None:
        """Send to the leader that is there on arrival; a leader of another term refuses a message with a term."""
        self.after(self.delay(), self.arrive, said, answer, term)
        if self.random.random() < 0.03:  # tried again, though the first call got through
            self.after(self.delay() + LATE_S * self.random.random(), self.arrive, said, None, term)

    def arrive(self, said: Input, answer: Callable[[bool], None] | None, term: int | None) -> None:
        if self.leader.alive and term in {None, self.term}:
            self.leader.receive(said, answer)

    def elect(self, old: SimLeader) -> None:
        """Elect another leader, unless another leads already."""
        if self.leader is not old:
            return
        if self.node.is_away:
            self.after(self.node.away_until - self.now + LATE_S * self.random.random(), self.elect, old)
            return
        self.term += 1
        self.leader = self.leader_class(self, self.term)
        self.leader.receive(TookOver(self.daemons.roll))
        self.daemons.find_leader()

    def decided(self) -> None:
        self.happens(Moment.DECIDING)

    def make_durable(self, record: Record) -> None:
        before, self.durable = self.durable, record
        self.checks.durable(before, record)
        self.migrations.durable(before, record)
        if before.sizing.rebatch is not None and record.sizing.rebatch is None and record.ledger is not before.ledger:
            self.cuts += record.plan is None
        if record.plan is not None and (before.plan is None or before.plan.generation != record.plan.generation):
            self.happens(Moment.SWITCHING, self.workers[self.random.choice(record.plan.roster)])
        if record.checkpoints.saves > before.checkpoints.saves:
            self.happens(Moment.SAVING)
        self.daemons.durable(record)
        for member in record.members:
            if member.state is WorkerState.LEAVING:
                self.happens(Moment.LEAVING, self.workers[member.identity.id])
        self.note(f"record {record.version}: {_short(record)}")


class CheckedMachine(JobMachine):
    """Real machine, which is looked at after each input."""

    def __init__(self, job: SimJob, record: Record, term: int) -> None:
        super().__init__(record, job.lead_times, DEADLINES)
        self._checks = job.checks
        self._term = term

    def handle(self, happened: Input, now: float, *, more: bool = False) -> list[Command]:
        follows = super().handle(happened, now, more=more)
        self._checks.handled(self, self._term, happened, follows)
        return follows


def _short(record: Record) -> str:
    plan = None if record.plan is None else (record.plan.generation, record.plan.roster, record.plan.after_step)
    call = f" call {record.roll_call.number} ring {record.roll_call.generation}" if record.roll_call is not None else ""
    states = " ".join(f"{member.identity.id}:{member.state.value}" for member in record.members)
    state = record.state.value if record.state is not JobState.FAILED else f"failed ({record.reason})"
    return f"{state} target {record.target} generation {record.generation} {record.roster} plan {plan}{call} {states}"
