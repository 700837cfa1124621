"""Warm process of each job, from which later workers on this node are forked together with their wardens.

It imports what a worker of the job that this agent has started here tells (`edl.launch.forking`), and is kept as long
as one of them lives. It dies with the agent; wardens and workers do not.

Owns: which job has one. Does not own: when it is started and ended meanwhile (`edl.launch.warm_starts`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from edl.host.imported_modules import told_by
from edl.launch.forking import CommandPlace, Forks, Warden
from edl.scheduler.worker_engine import Start
from edl.scheduler.worker_processes import script_of

logger = logging.getLogger("edl")

LOOK_S = 0.5


@dataclass
class _WarmJob:
    forks: Forks
    command: Sequence[str]
    folder: str
    environ: Mapping[str, str]  # of its newest worker
    workers: dict[str, Path] = field(default_factory=dict)  # that live, and their folders


class WarmJobs:
    """Warm processes of one node. Belongs to one event loop, in the main thread."""

    def __init__(self, logs: Path) -> None:
        """`logs`: below it each job has a folder."""
        self._logs = logs
        self._jobs: dict[str, _WarmJob] = {}
        self._looking: asyncio.Task[None] | None = None

    async def start(self, start: Start, warden: Warden) -> int:
        """Return the pid of the warden. 0: start a new process."""
        job = self._jobs.get(start.order.job)
        if job is None or (job.command, job.folder) != (start.asked.command, start.asked.folder):
            return 0
        return await job.forks.start_warden(warden, start.order.id)

    def began(self, start: Start, folder: Path) -> None:
        """Note that a worker lives, however it was started."""
        name, asked = start.order.job, start.asked
        if name not in self._jobs:
            wanted = start.environ.get("EDL_WARM_STARTS", "on")
            place = CommandPlace(start.environ, Path(asked.folder))
            log = self._logs / name / "warm.log"
            forks = Forks(
                asked.command, log, lambda words: logger.info("%s: warm starts %s", name, words), wanted, place
            )
            self._jobs[name] = _WarmJob(forks, asked.command, asked.folder, start.environ)
        job = self._jobs[name]
        job.environ = start.environ
        job.workers[start.order.id] = folder
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())

    def ended(self, worker: str, code: int | None) -> None:
        """Note that a worker has ended; with a job's last worker, end the job's warm process."""
        for name, job in list(self._jobs.items()):
            if worker in job.workers:
                job.forks.ended(worker, code)
            if job.workers.pop(worker, None) and not job.workers:
                job.forks.end()
                del self._jobs[name]

    def close(self) -> None:
        """End all."""
        if self._looking is not None:
            self._looking.cancel()
        for job in self._jobs.values():
            job.forks.end()
        self._jobs.clear()

    async def _look(self) -> None:
        while True:
            for name, job in self._jobs.items():
                try:
                    self._look_at(job)
                except OSError as error:  # a folder that is being removed
                    logger.info("%s: its workers cannot be looked at, for warm starts: %s", name, error)
            await asyncio.sleep(LOOK_S)

    def _look_at(self, job: _WarmJob) -> None:
        pids = {worker: pid for worker, folder in job.workers.items() if (pid := script_of(folder))}
        for worker, pid in pids.items():
            if told_by(pid) is not None:
                job.forks.proven(worker)
        job.forks.see(list(pids.values()), lambda: job.environ)
