"""Start the workers of a simulated job, as `edl run` does: the first ones, replacements, and others.

Owns: how many are started and where, and of what kind each is. Does not own: how many the job is to have, nor how one
becomes a member (`tests.model.model_daemons`).
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from edl.core.resize.scale_requests import staying
from edl.core.worker.worker_states import TrainerState
from edl.protocol.data_nouns import DataSpec
from edl.protocol.record import OVER, Record
from tests.model.model_worker import SESSION_S, SimWorker

if TYPE_CHECKING:
    from tests.model.simulation import SimJob

AHEAD = (1, 1, 3, 1_000_000)  # steps that a pipeline may read ahead


class SimLauncher:
    def __init__(self, job: SimJob, seed: int, *, prepares: float, sends: float) -> None:
        self.job = job
        self._prepares, self._sends = prepares, sends
        self._depths = random.Random(f"pipelines {seed}")
        self._kinds = random.Random(f"rings {seed}")

    def begin(self, workers: int) -> None:
        for _ in range(workers):
            self.start()
        self.job.after(SESSION_S, self._look, self.job.durable)

    def start(self, host: str = "") -> None:
        """Start another worker, where the job is or on a host for which it was asked."""
        job, number = self.job, len(self.job.workers)
        prepares, sends = self._kinds.random() < self._prepares, job.senders.random() < self._sends
        where = host or job.migrations.host_of(number)
        worker = job.new_worker(f"w{number}", where, prepares=prepares, sends_state=sends)
        worker.answering = bool(host)
        worker.ahead = self._depths.choice(AHEAD)
        if job.spec is not None and not asks_by_epoch(job.spec):
            worker.wanted = job.spec.epochs
        worker.model = job.begins_with or worker.model
        job.workers[worker.id] = worker
        job.daemons.begin(worker)

    def start_missing(self) -> None:
        """Start the workers that are neither in the job to stay nor on their way, as `edl run` counts them."""
        present = len(staying(self.job.durable)) + len(self.under_way())
        for _ in range((self.job.durable.target or 1) - present):
            self.start()

    def _look(self, before: Record) -> None:
        """The first generation waits for as many as were asked for: what started those that died starts others.

        Again and again, as those may die before any leader has heard of them, and leaders with them. `before`: what was
        on record at the last look.
        """
        record = self.job.durable
        if record.generation or record.state in OVER:
            return
        if record is before and record.plan is None:
            self.start_missing()
        self.job.after(SESSION_S, self._look, record)

    def under_way(self) -> list[SimWorker]:
        coming = (worker for worker in self.job.workers.values() if worker.alive and not worker.admitted)
        return [worker for worker in coming if worker.doing is not TrainerState.OVER]

    def on_their_way(self, host: str) -> int:
        return sum(worker.host == host for worker in self.under_way())


def asks_by_epoch(spec: DataSpec) -> bool:
    """Tell whether a script asks for an epoch when it begins the pass over it."""
    return spec.open_ended or (spec.by_sample and spec.whole_epochs)
