"""Check training against the truth, kept sample by sample beside the ledger that never sees it.

Owns: which samples were trained in which step, and what a model is after each. Does not own: what samples a worker was
to have (`tests.model.model_checks`).
"""

from __future__ import annotations

from collections.abc import KeysView
from typing import TYPE_CHECKING, NoReturn

from edl.core.data.sample_ledger import Ledger
from edl.core.job.leader_machine import NOT_LISTENING, JobMachine
from edl.core.worker.worker_states import TrainerState
from edl.errors import InvalidTransition
from edl.protocol.record import Gone, Record, WorkerState
from tests.model.model_rings import Sample
from tests.model.model_worker import SimWorker
from tests.model.models import learn, mean, of_own, of_sample

if TYPE_CHECKING:
    from tests.model.simulation import SimJob


class TrainingChecks:
    def __init__(self, job: SimJob) -> None:
        self._job = job
        self._before = frozenset[Sample]() if job.inherits is None else job.inherits.trained  # in lives before
        self._steps: dict[int, list[Sample]] = {}  # what was trained in each step, in the line of states that lives
        self._trained_in: dict[Sample, int] = dict.fromkeys(self._before, 0)
        self._trained_until: list[int] = [len(self._before)]  # samples in all steps up to this one
        self._learned: dict[int, int] = {}  # by each step, as its samples make it
        self._first = 0  # generation on record
        self._shared: set[int] = set()  # steps that more than one worker made
        self._trained_by = 0  # the newest ring that has made a step
        self._go: set[str] = set()  # leavers that an announced plan is without: others have read by its leases
        self._stable = 0  # by the ledger in force
        self._ledger: tuple[Ledger | None, int, int] = (None, 0, 0)
        self._farthest, self.moved_on_at = 0, 0.0  # a step with samples, and when it was trained

    @property
    def steps(self) -> int:
        return len(self._steps)

    @property
    def samples(self) -> KeysView[Sample]:
        return self._trained_in.keys()

    def learned_by(self, step: int) -> int | None:
        """Return the learned part of a model after `step`; None: that step was not made."""
        return self._learned.get(step)

    def trained_up_to(self, step: int) -> set[Sample]:
        """Return the samples trained up to `step`, with those of all earlier lives."""
        return {*self._before, *(sample for at, hand in self._steps.items() if at <= step for sample in hand)}

    def samples_of_steps(self) -> list[list[Sample]]:
        return [self._steps[step] for step in sorted(self._steps)]

    # ------------------------------------------------------------------------------------------------ by the ledger

    def durable(self, record: Record) -> None:
        self._first = self._first or record.generation
        # A leader that saw no first ring stand does not know what leavers have trained there (docs/assumptions.md).
        if record.plan is not None and (record.plan.after_step is not None or not record.generation):
            leavers = {one.identity.id for one in record.members if one.state is WorkerState.LEAVING}
            self._go |= leavers.difference(record.plan.roster)

    def handled(self, machine: JobMachine) -> None:
        ledger = machine.ledger
        if ledger is None:
            return
        self._is_stable(machine.record, ledger.step)
        known = (ledger, ledger.covered_step, machine.record.generation)
        if self._ledger != known:  # else it has only moved on by whole steps, which its leases know how to count
            self._ledger = known
            self._accounts_for_every_sample(ledger)

    def _is_stable(self, record: Record, step: int) -> None:
        """Check that all members have applied a stable step, whichever of them may die next."""
        if step == self._stable:
            return
        self._stable = step
        members = {member.identity.id for member in record.members}
        for worker in (self._job.workers[worker] for worker in record.roster if worker in members):
            if worker.alive and worker.step < step:
                self._violated("I5", f"step {step} counts as stable, and {worker.id} has applied {worker.step}")

    def _accounts_for_every_sample(self, ledger: Ledger) -> None:
        try:
            untrained = ledger.validate()
        except InvalidTransition as error:
            self._violated("I6", str(error))
        if ledger.step >= len(self._trained_until):
            self._violated("I5", f"step {ledger.step} counts as stable, and no worker has trained it")
        stream = self._job.stream is not None
        trained = ledger.counts().trained if stream else ledger.spec.total * ledger.spec.epochs - untrained
        if trained != self._trained_until[ledger.step]:
            truth = self._trained_until[ledger.step]
            self._violated("I6", f"{trained} samples count as trained after step {ledger.step}, and {truth} are")

    # ------------------------------------------------------------------------------------------------------ by rings

    def sat(self, worker: SimWorker) -> None:
        """Check that a worker begins in a new ring with the newest model, unless that comes beside the first steps."""
        if worker.machine.model.is_awaited:
            return
        if worker.step and worker.model.learned != self._learned.get(worker.step):
            self._violated("I5", f"{worker.id} goes on after step {worker.step} with another model than that step's")
        if worker.step and not worker.has_state:
            self._violated("I5", f"{worker.id} goes on after step {worker.step}, and would give its model to no other")

    def applied(self, workers: list[SimWorker]) -> None:
        """Check that models after a step are as if one worker had trained all samples of all steps."""
        if len({worker.model for worker in workers}) > 1:
            models = {worker.id: worker.model for worker in workers}
            self._violated("I5", f"after step {workers[0].step} models differ: {models}")
        if workers:
            self.sat(workers[0])

    def trained(self, ring: int, members: list[SimWorker], step: int, samples: list[Sample], done: bool) -> None:
        """A ring has been through an all-reduce. `done`: some have its result, else it is void."""
        if any(worker.step != step - 1 or worker.generation != ring for worker in members):
            at = {worker.id: (worker.generation, worker.step) for worker in members}
            self._violated("I3", f"ring {ring} takes step {step} and its members are at {at}")
        told = {worker.leases.samples(step) for worker in members}
        if self._job.spec is not None and told != {len(samples)}:
            self._violated("I7", f"step {step} has {len(samples)} samples, and the workers were told {told}")
        self._job.checks.plans.newcomers_take_part(ring, members, step)
        if not done:
            return
        self._make_room(step, members)
        if len(members) > 1:
            self._shared.add(step)
        for sample in samples:
            if self._trained_in.setdefault(sample, step) != step:
                self._violated("I6", f"{sample} is trained in step {self._trained_in[sample]} and in step {step}")
        if len(set(samples)) != len(samples):
            self._violated("I6", f"step {step} has a sample twice: {samples}")
        self._steps[step] = samples
        if step > self._farthest and (samples or self._job.spec is None):
            self._farthest, self.moved_on_at = step, self._job.now
        self._trained_until.append(self._trained_until[step - 1] + len(samples))
        if step == 1:
            self._job.checks.savings.begins(members[0].model)
        before = self._learned[step - 1] if step > 1 else members[0].model.learned
        self._learned[step] = learn(before, self._gradient(members, step, samples))
        self._trained_by = ring

    def _make_room(self, step: int, members: list[SimWorker]) -> None:
        """Take back what was trained from `step` on: the workers that had applied it are dead."""
        if step == 1 and self._is_lost_without_a_trace(members):
            self._steps, self._learned, self._shared = {}, {}, set()
            self._trained_in, self._trained_until = dict.fromkeys(self._before, 0), [len(self._before)]
            self._farthest = 0
        newest = len(self._trained_until) - 1
        if step > newest + 1:
            self._violated("I5", f"step {step} is trained, and only {newest} was before")
        again = range(step, newest + 1)
        if len(self._shared.intersection(again)) > 1:  # a ring of one makes several steps that no other worker has
            self._violated("I5", f"step {step} is trained again, and {newest} was before")
        for void in reversed(again):
            self._void(void, members)

    def _is_lost_without_a_trace(self, members: list[SimWorker]) -> bool:
        """Tell whether the job begins anew with all its samples: no ring that trained was on record, and all that
        trained are gone.
        """
        holders = (worker for worker in self._job.workers.values() if self._holds(worker, 1) and worker not in members)
        return (not self._first or self._trained_by < self._first) and not any(holders)

    def _gradient(self, members: list[SimWorker], step: int, samples: list[Sample]) -> int | None:
        """Return the gradient of all samples of `step`, each of equal weight."""
        if self._job.spec is None:
            return mean((of_own(worker.id, step) for worker in members), of=len(members))
        return mean(map(of_sample, samples), of=len(samples))

    def _void(self, step: int, members: list[SimWorker]) -> None:
        out = self._job.durable.trials.left_out  # of a pair it is not known which is cut off: what it has goes with it
        others = (one for one in self._job.workers.values() if one not in members and one.id not in {out, *self._go})
        holders = [worker.id for worker in others if self._holds(worker, step) and not self._is_deaf(worker)]
        if holders:
            self._violated("I5", f"step {step} is trained again, and {holders} have applied it")
        self._shared.discard(step)
        for sample in self._steps.pop(step):
            del self._trained_in[sample]
        self._trained_until.pop()

    def _is_deaf(self, worker: SimWorker) -> bool:
        """Tell whether the worker was lost as no process listened where its daemon did: another one was starting."""
        return worker.daemon > 1 and Gone(worker.id, NOT_LISTENING) in self._job.durable.gone

    @staticmethod
    def _holds(worker: SimWorker, step: int) -> bool:
        """A worker whose script has ended is no survivor: it cannot give its state away. Nor is one that is cut off."""
        lives = worker.alive and not worker.stalled and not worker.cut_off and worker.doing is not TrainerState.OVER
        return lives and worker.has_state and worker.step >= step

    def _violated(self, invariant: str, complaint: str) -> NoReturn:
        self._job.checks.violated(invariant, complaint)
