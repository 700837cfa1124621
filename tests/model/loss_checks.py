"""Check the workers that a leader loses: it gives up none that is well, and no step that only one of them has.

Owns: whom a leader may take for one that hangs, and what may go with a worker. Does not own: whom it holds to be unfit
for a ring (`tests.model.plan_checks`), nor what is trained instead (`tests.model.training_checks`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from edl.core.job.deadlines import INSTEAD
from edl.core.job.leader_machine import NOT_LISTENING
from edl.core.worker.worker_states import TrainerState
from edl.protocol.leader_messages import Phase
from edl.protocol.record import OVER, Gone, Record, WorkerState
from edl.protocol.trainer_messages import TrainerStatus
from tests.model.model_worker import SimWorker

if TYPE_CHECKING:
    from tests.model.simulation import SimJob


class LossChecks:
    def __init__(self, job: SimJob) -> None:
        self._job = job

    def durable(self, before: Record, record: Record) -> None:
        if record.gone is before.gone:
            return
        for gone in record.gone:
            if gone not in before.gone and gone.reason:
                worker = self._job.workers[gone.worker]
                self._has_not_made(worker, gone, before)
                self._takes_no_step_along(worker, gone, record)
                self._hangs(worker, gone)

    def _has_not_made(self, worker: SimWorker, gone: Gone, before: Record) -> None:
        """The step that others have waited for in vain, whatever its script is at by now."""
        if "step took longer" not in gone.reason or not worker.alive:
            return
        others = (self._job.workers[one] for one in before.roster if one != worker.id)
        waiting = ((one.step, one.observed.status) for one in others)
        waited = [at for at, told in waiting if _was_failed(told, before.generation)]
        if waited and worker.step > max(waited):
            self._violated("I5", f"{worker.id} is lost for step {max(waited) + 1}, which it has made: {gone.reason}")

    def _takes_no_step_along(self, worker: SimWorker, gone: Gone, record: Record) -> None:
        """Check that no step goes with a worker that is well and alone has made it."""
        unfit = gone.worker in {one.worker for one in record.trials.unfit}  # of a pair it is not known which one is
        # Where no process listens, none is expected to come back: a ring does not break by itself, or hardly ever.
        restarts = gone.reason == NOT_LISTENING and worker.daemon > 1
        if record.state in OVER or unfit or restarts or not self._is_well(worker):
            return
        rest = (self._job.workers[one.identity.id] for one in record.members if one.state is not WorkerState.DONE)
        if not any(one.alive and one.has_state and one.step >= worker.step for one in rest):
            self._violated("I5", f"step {worker.step} goes with {worker.id}, which is well: {gone.reason}")

    def _hangs(self, worker: SimWorker, gone: Gone) -> None:
        given_up = "hangs" in gone.reason or INSTEAD in gone.reason
        refused = worker.doing is TrainerState.OVER and not worker.admitted  # its daemon ends, too, and its session
        if given_up and worker.alive and not (worker.is_odd or refused):  # the dead do until their sessions end
            self._violated("I12", f"{worker.id} is given up as one that hangs: {gone.reason}")

    @staticmethod
    def _is_well(worker: SimWorker) -> bool:
        return worker.alive and worker.has_state and worker.step > 0 and not (worker.is_odd or worker.cut_off)

    def _violated(self, invariant: str, complaint: str) -> NoReturn:
        self._job.checks.violated(invariant, complaint)


def _was_failed(told: TrainerStatus, generation: int) -> bool:
    """Tell whether its daemon knows that the ring of `generation` has failed: its script may be in that mini-batch."""
    void = told.void is not None and told.void.generation == generation
    return void or (told.phase, told.generation) == (Phase.BROKEN, generation)
