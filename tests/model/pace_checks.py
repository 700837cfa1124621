"""Check that training does not pause where nothing goes wrong with a process or a message (I11)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NoReturn

from edl.core.worker.worker_states import TrainerState
from edl.protocol.assignment import Orders
from tests.model.model_faults import SimFault
from tests.model.model_worker import SimWorker

if TYPE_CHECKING:
    from tests.model.simulation import SimJob

HARMLESS: Final = {SimFault.JOIN, SimFault.LEAVE, SimFault.SCALE}  # members do not notice, but for the switch itself


class Pace:
    """Pauses of one job. `violated`: called about each."""

    def __init__(self, job: SimJob, violated: Callable[[str, str], NoReturn]) -> None:
        self._job = job
        self._violated = violated

    def hears(self, worker: SimWorker, orders: Orders) -> None:
        """The word of a switch comes before its step is over: no mini-batch is void."""
        coming = orders.assignment
        if coming is None or coming.after_step is None or coming.place.generation <= worker.generation:
            return
        goes_on = worker.doing is TrainerState.TRAINING
        if self._is_smooth and goes_on and worker.step >= coming.after_step:
            late = f"{worker.id} has applied {worker.step}, and hears of a switch after {coming.after_step}"
            self._violated("I11", late)

    def hears_of_saving(self, worker: SimWorker, orders: Orders) -> None:
        """Likewise the word of a checkpoint: all can copy after its step."""
        save = orders.save
        if save is None or save.generation != worker.generation or worker.observed.status.copied.number >= save.number:
            return
        if self._is_smooth and worker.doing is TrainerState.TRAINING and worker.step >= save.after_step:
            late = f"{worker.id} has applied {worker.step}, and hears of a checkpoint after {save.after_step}"
            self._violated("I11", late)

    def waits(self, worker: SimWorker) -> None:
        """Check that a worker without samples does not wait for a leader to lease samples that are there."""
        spec, leases, step = self._job.spec, worker.leases, worker.step + 1
        if spec is None or spec.by_sample or spec.open_ended or spec.shards or not self._is_smooth:
            return
        if worker.entered < worker.step and leases.at(step) is None and not leases.ends_before(step):
            self._violated("I11", f"{worker.id} waits after step {worker.step}, and samples are left to be leased")

    @property
    def _is_smooth(self) -> bool:
        return not self._job.late and self._job.struck.keys() <= HARMLESS
