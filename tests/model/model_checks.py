"""Check after every event what must hold in a simulated job, named by the invariants of the design.

Owns: who looks at which event, and what must hold of a leader's word and of those that follow it. Does not own: what
was trained (`tests.model.training_checks`), whom a leader plans with (`tests.model.plan_checks`), how a job ends
(`tests.model.end_checks`), nor what the other files of checks own. Cheap, because it runs after every event: each check
looks only at what the event could have changed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NoReturn

from edl.core.job.leader_inputs import Command, Input, Reported
from edl.core.job.leader_machine import JobMachine
from edl.core.worker.worker_states import TrainerState
from edl.protocol.assignment import Assignment, Orders
from edl.protocol.record import OVER, Record, WorkerState
from tests.model.end_checks import EndChecks
from tests.model.loss_checks import LossChecks
from tests.model.model_faults import SimFault
from tests.model.model_rings import SimRing
from tests.model.model_worker import SimWorker
from tests.model.pace_checks import Pace
from tests.model.plan_checks import PlanChecks
from tests.model.record_checks import RecordChecks
from tests.model.saving_checks import SavingChecks
from tests.model.tally_checks import TallyChecks
from tests.model.training_checks import TrainingChecks
from tests.model.writing_checks import WritingChecks

if TYPE_CHECKING:
    from tests.model.simulation import SimJob


class Violation(AssertionError):
    """Failure of an invariant. The message has the transcript of the job."""


class Checks:
    def __init__(self, job: SimJob) -> None:
        self.job = job
        self.records = RecordChecks(self.violated)
        self.tallies = TallyChecks(self.violated)
        self.writing = WritingChecks(job)
        self.pace = Pace(job, self.violated)
        self.savings = SavingChecks(job)
        self.plans = PlanChecks(job)
        self.losses = LossChecks(job)
        self.training = TrainingChecks(job)
        self.ends = EndChecks(job)
        self._durable: dict[int, Record] = {job.durable.version: job.durable}
        self._reported: dict[str, tuple[int, int, int]] = {}  # worker -> term, generation, step
        self._gone_to: dict[str, int] = {}  # by worker: the newest generation whose ring it has gone to

    @property
    def steps(self) -> int:
        return self.training.steps

    def violated(self, invariant: str, complaint: str) -> NoReturn:
        raise Violation(self.job.story(f"{invariant}: {complaint}"))

    # --------------------------------------------------------------------------------------------------- the leader

    def handled(self, machine: JobMachine, term: int, happened: Input, follows: list[Command]) -> None:
        """Check a machine that has taken an input; nothing of it is durable yet."""
        self.writing.handled(term, follows)
        if isinstance(happened, Reported):
            self._never_goes_back(machine, term, happened.worker)
        self.training.handled(machine)

    def _never_goes_back(self, machine: JobMachine, term: int, worker: str) -> None:
        observation = machine.seen.observation(worker)
        if observation is not None and observation.generation:  # else it may boot again, after a first ring that failed
            now = (term, observation.generation, observation.step)
            if now < self._reported.get(worker, now):
                self.violated("I10", f"an old report of {worker} counts: {now} after {self._reported[worker]}")
            self._reported[worker] = now

    def durable(self, before: Record, record: Record) -> None:
        if record.version <= before.version:
            self.violated("I9", f"version {record.version} was written over {before.version}")
        self._durable[record.version] = record
        self.records.durable(before, record)
        self.tallies.durable(before, record)
        self.savings.durable(before, record)
        self.plans.durable(before, record)
        self.losses.durable(before, record)
        self.training.durable(record)

    def missed(self, worker: SimWorker) -> None:
        """Check that a worker whose session is long gone, or whose death was seen, is no member."""
        if any(one.identity.id == worker.id and one.state is not WorkerState.DONE for one in self.job.durable.members):
            self.violated("I12", f"{worker.id} is gone, and still is a member")

    def reached(self, size: int) -> None:
        """`size` was the last that was asked for, long ago, and nothing has happened since."""
        record = self.job.durable
        if self.job.hangs() or self.job.struck[SimFault.CUT_OFF]:  # then hosts may be refused for a while
            return
        if any(one.state is WorkerState.DONE for one in record.members):  # it ends, and may wait for its last save
            return
        if record.state not in OVER and (record.target, len(record.roster)) != (size, size):
            self.violated(
                "requests", f"{size} workers were asked for, and generation {record.generation} has {record.roster}"
            )

    # -------------------------------------------------------------------------------------------------- the workers

    def heard(self, worker: SimWorker, orders: Orders, record: Record) -> None:
        if self._durable.get(record.version) is not record:
            self.violated("I9", f"{worker.id} is told version {record.version}, which is not durable")
        self.pace.hears(worker, orders)
        self.pace.hears_of_saving(worker, orders)
        known = worker.orders
        if known is not None and (orders.term, orders.version) <= (known.term, known.version):
            self.violated("I10", f"{worker.id} takes version {orders.version} of term {orders.term} after newer orders")
        if orders.assignment is not None and record.plan is not None:
            place, members = orders.assignment.place, record.plan.roster
            self.plans.has_roster(place.generation, members)
            if (place.rank, place.size) != (members.index(worker.id), len(members)):
                self.violated("I2", f"{worker.id} is rank {place.rank} of {place.size} in {members}")

    def goes_to(self, worker: SimWorker, generation: int) -> None:
        """Check that the worker goes to each ring once: after a failure the leader plans one with another number."""
        if generation <= self._gone_to.get(worker.id, 0):
            self.violated("I2", f"{worker.id} goes to ring {generation} again")
        self._gone_to[worker.id] = generation

    def reports(self, worker: SimWorker) -> None:
        """Check that the daemon, as it reports, knows the trainer's newest status."""
        if worker.alive and not worker.stalled and worker.told != worker.machine.gathered():
            self.violated("I9", f"{worker.id} has not told its daemon its newest status")

    def reads(self, worker: SimWorker) -> None:
        """Check that the worker's pipeline has read just the samples that the worker is to train."""
        for step, batch in worker.read.items():
            lease = worker.leases.at(step)
            if lease is None or lease.between(step - 1, step) != batch:
                self.violated("I7", f"{worker.id} has read {batch} for step {step}, which was taken back: {lease}")

    def weighs(self, worker: SimWorker, step: int, samples: int) -> None:
        """Check that a worker counts in the reduction of `step` as its samples do; and for nothing without a state."""
        if worker.machine.model.is_awaited and (samples or worker.weight):
            self.violated("I5", f"{worker.id} has no state, and brings {samples} samples into step {step}")
        self._weighs(worker, step, samples)

    def _weighs(self, worker: SimWorker, step: int, samples: int) -> None:
        own, total = worker.leases.own(step), worker.leases.samples(step)
        if own != samples or worker.weight != (samples / total if total else 0.0):
            told = f"{own} of {total} samples, weight {worker.weight}"
            self.violated("I7", f"{worker.id} trains {samples} samples in step {step}, and takes that for {told}")

    def enters(self, worker: SimWorker, before: TrainerState, assignment: Assignment) -> None:
        """A worker goes to the rendezvous of its next ring; `before`: where it was."""
        after_step = assignment.after_step
        if before is not TrainerState.BETWEEN:
            return
        others = any(one.sits and one.generation == worker.generation for one in self.job.workers.values())
        if others and after_step is not None and worker.step < after_step:
            self.violated("I3", f"{worker.id} leaves its ring after step {worker.step}, which goes on to {after_step}")
        ring = self.job.rings.rings.get(worker.generation)
        if ring is not None and after_step is None and self._works(ring, worker):
            self.violated("I14", f"{worker.id} leaves ring {ring.generation} at once, and no member of it is gone")

    def _works(self, ring: SimRing, leaver: SimWorker) -> bool:
        """Tell whether all members sit in the ring, stay and can go on, and a switch was announced to them in time."""
        known = {member.identity.id for member in self.job.durable.members}
        return known.issuperset(one.id for one in ring.members) and all(
            one.alive
            and (one.sits or one is leaver)
            and one.generation == ring.generation >= one.machine.status.missed
            and not one.is_odd
            and not one.leaving
            for one in ring.members
        )

    def leaves(self, worker: SimWorker, before: TrainerState, orders: Orders) -> None:
        """A worker obeys, and goes; `before`: where it was."""
        if before is TrainerState.BETWEEN and worker.step < orders.leave_after_step:
            last = orders.leave_after_step
            self.violated("I3", f"{worker.id} leaves after step {worker.step}, and its ring needs it up to {last}")

    def formed(
        self, generation: int, members: list[SimWorker], had: Mapping[str, int], booted: Collection[str]
    ) -> None:
        """A ring stands, and each member has found how it begins. `had`: the steps of those who had a state before."""
        self.plans.has_roster(generation, tuple(worker.id for worker in members))
        begins = {worker.machine.begins_after for worker in members}
        if had and begins != {max(had.values())}:
            self.violated("I5", f"generation {generation} begins after step {begins} of {had}")
        if had and any(worker.id not in booted for worker in members):
            self.violated("I4", f"generation {generation} has members that were not ready")
