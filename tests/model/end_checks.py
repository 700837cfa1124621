"""Check a simulated job's end: it has trained all there was, or nothing else was left to do.

Owns: which ends a job may come to. Does not own: that it comes to one at all (`tests.model.simulation`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from edl.core.checkpoint.due_times import is_saved
from edl.protocol.leader_messages import Phase
from edl.protocol.record import OVER, JobState, Record, WorkerState
from tests.model.model_faults import SimFault
from tests.model.model_worker import SimWorker

if TYPE_CHECKING:
    from tests.model.simulation import SimJob


class EndChecks:
    def __init__(self, job: SimJob) -> None:
        self._job = job

    def over(self) -> None:
        self._job.next_rings.over()
        self._job.limb_rings.over()
        record, spec = self._job.durable, self._job.spec
        if record.state not in OVER:
            self._violated("I12", "nothing happens any more, and the job is not over")
        if record.state is JobState.FAILED:
            self._has_to_fail(record.reason)
        elif record.state is JobState.PREEMPTED:
            self._has_to_go(record)
        elif unended := [one for one in record.roster if self._job.workers[one].phase is not Phase.DONE]:
            self._violated("ends", f"the job is finished, and {unended} of its ring did not come to their ends")
        elif spec is None:
            if self._job.checks.steps < self._job.steps:
                self._violated("I5", f"the job is finished after step {self._job.checks.steps} of {self._job.steps}")
        elif len(trained := self._job.checks.training.samples) != self._job.samples_of(spec.epochs):
            stream = self._job.stream
            numbered = spec.total if stream is None else 0
            there = {(epoch, at) for epoch in range(spec.epochs) for at in range(numbered)}
            lost = (there if stream is None else stream.samples(spec.epochs)) - trained
            self._violated("I6", f"the job is finished, and no worker has trained {sorted(lost)[:9]}")

    def _has_to_go(self, record: Record) -> None:
        """A job goes only where it was asked to, and says what is saved."""
        if record.checkpoints.preemption is None:
            self._violated("I16", "the job is preempted, and it was not asked to go")
        if " is saved: " in record.reason and not is_saved(record):
            told = record.reason
            self._violated("I16", f"the job says: {told}; and no checkpoint was begun after it was asked to go")
        self._job.checks.savings.has_gone(record)

    def _has_to_fail(self, reason: str) -> None:
        """A job may fail, but only where nothing else was left to do."""
        if "did not come to the end of its script" in reason:
            self._did_not_end(self._job.workers[reason.split()[1]])
            return
        if self._may_fail(reason):
            return
        if "has the model's state" not in reason:
            self._violated("I6", f"the job failed: {reason}")
        record = self._job.durable
        staying = [member.identity.id for member in record.members if member.state is not WorkerState.LEAVING]
        left = [worker for worker in staying if worker in record.roster]
        able = [worker for worker in left if self._could_go_on(self._job.workers[worker])]
        if able:
            self._violated("I5", f"the job failed: {reason}; and {able} could have gone on")
        leavers = [one.identity.id for one in record.members if one.state is WorkerState.LEAVING]
        givers = [one for one in leavers if one in record.roster and self._could_give(self._job.workers[one])]
        if givers and any(self._could_take(self._job.workers[one]) for one in staying):
            self._violated("I5", f"the job failed: {reason}; and {givers} could have handed on what they have")

    def _may_fail(self, reason: str) -> bool:
        """Tell whether the job may fail for that reason in any case."""
        here = [self._job.workers[member.identity.id] for member in self._job.durable.members]
        if reason.startswith("no ring of the workers"):
            none_trained = not self._job.checks.training.samples
            # Before the first step members may die one after the other, sooner than their sessions end.
            if self._only_those_astray_are_left() or (none_trained and not all(one.alive for one in here)):
                return True
        no_ring = reason.startswith(("no ring of the workers", "the first ring"))
        return (
            # by samples: the one case that the documentation admits
            ("before their data did" in reason and self._job.spec is not None and self._job.spec.by_sample)
            or (no_ring and self._job.struck[SimFault.CUT_OFF] + self._job.struck[SimFault.BREAK_LIMB] > 0)
            or ("from the first mini-batch on" in reason and any(one.astray for one in here))
            or ("no shard of the stream has an item" in reason and self._job.samples_of(1) == 0)
            or (" left and the job needs " in reason and self._job.durable.limits.minimum > 1)
        )

    def _only_those_astray_are_left(self) -> bool:
        """Tell whether all is trained, and who has not come to its end waits for a collective that no other comes to:
        each newcomer ends at once, and breaks the ring.
        """
        spec, roster = self._job.spec, [self._job.workers[worker] for worker in self._job.durable.roster]
        if spec is None:
            is_trained = self._job.checks.steps >= self._job.steps
        else:
            is_trained = len(self._job.checks.training.samples) == self._job.samples_of(spec.epochs)
        return is_trained and all(one.astray or one.phase is Phase.DONE for one in roster)

    def _did_not_end(self, worker: SimWorker) -> None:
        """Check that the worker did not end, unless its host was gone before its end could be told."""
        if worker.phase is Phase.DONE and worker.daemon:
            self._violated("ends", f"the job failed, as {worker.id} is said not to have come to its end")

    @staticmethod
    def _could_give(worker: SimWorker) -> bool:
        return worker.alive and not worker.stalled and worker.has_state and worker.phase is not Phase.DONE

    @staticmethod
    def _could_take(worker: SimWorker) -> bool:
        """Tell whether the worker can enter a ring: not once its script has ended."""
        return worker.alive and not worker.stalled and worker.phase is not Phase.DONE

    @staticmethod
    def _could_go_on(worker: SimWorker) -> bool:
        return worker.alive and not worker.stalled and not worker.leaving and worker.has_state

    def _violated(self, invariant: str, complaint: str) -> NoReturn:
        self._job.checks.violated(invariant, complaint)
