"""Workers as processes of this machine, each with a warden beside it that outlives the agent.

A worker is gone when its warden is, and no process of it is left (`worker_folders`). What lingers after the script's
end is given `LINGER_S`, then killed.

Later workers of a job are forked on this node, together with their wardens, from the job's warm process. It imports
what a worker that this agent has started here tells (`edl.launch.forking`), and is kept as long as one of them lives.
It dies with the agent; wardens and workers do not.

Owns: these processes. Does not own: their files (`worker_folders`), what is started when, nor when a warm process is
started and ended meanwhile (`edl.launch.warm_starts`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from edl.cluster.queue.agent_machine import WorkerFound
from edl.host.host_processes import process_start_time, spawn_daemon, watch_exit
from edl.host.imported_modules import told_by
from edl.launch.forking import CommandPlace, Forks, Warden
from edl.launch.job_processes import MARK, is_running
from edl.scheduler import worker_folders
from edl.scheduler.cluster_home import put
from edl.scheduler.worker_engine import Ended, Start
from edl.scheduler.worker_folders import WorkerFolders, devices_of, evidence, mark_of, path_here, script_of

logger = logging.getLogger("edl")

LINGER_S = 15.0  # for daemons of edl, which outlive their trainers a little
POLL_S = 0.1


class LocalEngine:
    """Engine of one node that is this machine."""

    def __init__(self, folder: Path, logs: Path, ended: Ended) -> None:
        """`folder`: of the node. `logs`: below it each job has a folder."""
        self._folders = WorkerFolders(folder, logs)
        self._ended = ended
        self._warm = WarmJobs(logs)
        self._watches: dict[str, asyncio.Task[None]] = {}

    @property
    def takes_workers(self) -> bool:
        return True

    async def find(self) -> list[WorkerFound]:
        return [self._found(folder) for folder in self._folders.kept()]

    async def start(self, start: Start) -> int | None:
        order = start.order
        folder = await asyncio.to_thread(self._folders.claim, start, wait_alone=LINGER_S)
        if folder is None:
            return None
        ours = {MARK: mark_of(folder), "PATH": path_here()}
        ours |= {name: start.environ[name] for name in ("EDL_HOME",) if name in start.environ}
        command = self._folders.warden(start)
        log = folder / "warden.log"
        pid = await self._warm.start(start, Warden(command, ours, log))
        pid = pid or await asyncio.to_thread(spawn_daemon, command, ours, log)
        try:
            put(folder / "warden", f"{pid} {process_start_time(pid) or 0}".encode())
        except OSError as error:  # it runs all the same, and is found by its mark
            logger.warning("the pid of %s cannot be written down: %s", order.id, error)
        self._warm.began(start, folder)
        self._watch(order.id, pid)
        return pid

    async def bar(self, worker: str) -> WorkerFound:
        return self._found(self._folders.bar(worker))

    def end(self, worker: str, *, kill: bool) -> None:
        if kill:
            worker_folders.kill(self._folders[worker])
            return
        pid, started = _warden(self._folders[worker])
        if pid and is_running(pid, started):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def forget(self, worker: str) -> None:
        self._folders.forget(worker)

    async def close(self) -> None:
        self._warm.close()
        for task in self._watches.values():
            task.cancel()
        await asyncio.gather(*self._watches.values(), return_exceptions=True)

    # -------------------------------------------------------------------------------------------------------- inside

    def _found(self, folder: Path) -> WorkerFound:
        """Look also where the worker's agent died before it wrote down the warden's pid."""
        pid, started = _warden(folder)
        alive = bool(pid and is_running(pid, started)) or worker_folders.lives(folder)
        devices = devices_of(folder)
        if alive:
            self._watch(folder.name, pid if pid and is_running(pid, started) else 0)
            return WorkerFound(folder.name, devices, pid, None)
        self._folders.withdraw(folder.name)
        return WorkerFound(folder.name, devices, pid, evidence(folder))

    def _watch(self, worker: str, pid: int) -> None:
        self._watches[worker] = asyncio.create_task(self._wait(worker, pid), name=f"worker {worker}")

    async def _wait(self, worker: str, pid: int) -> None:
        if pid:
            gone = asyncio.Event()
            watch = watch_exit(pid, lambda _: gone.set())
            try:
                await gone.wait()
            finally:
                watch.cancel()
        clock, folder = asyncio.get_running_loop().time, self._folders[worker]
        until = math.inf
        while await asyncio.to_thread(worker_folders.lives, folder):
            if until == math.inf and (pid or _has_ended(folder)):
                until = clock() + LINGER_S
            if clock() > until:
                await asyncio.to_thread(worker_folders.kill, folder)
            await asyncio.sleep(POLL_S)
        del self._watches[worker]
        found = evidence(folder)
        self._warm.ended(worker, None if found.told else found.code)
        self._ended(worker, found)


def _has_ended(folder: Path) -> bool:
    """Called where the warden is not known to run: the worker has ended if it is written down that the warden ran, or
    how the worker ended.
    """
    return _warden(folder) != (0, 0) or (folder / "exit.json").exists()


def _warden(folder: Path) -> tuple[int, int]:
    try:
        pid, started = (folder / "warden").read_text().split()
    except (OSError, ValueError):
        return 0, 0
    return int(pid), int(started)


LOOK_S = 0.5


@dataclass
class _WarmJob:
    forks: Forks
    command: Sequence[str]
    folder: str
    environ: Mapping[str, str]  # of its newest worker
    workers: dict[str, Path] = field(default_factory=dict)  # that live, and their folders


class WarmJobs:
    """Warm processes of one node. They belong to one event loop, in the main thread."""

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
        """Note that a worker lives, however it was started. Workers of several processes are not forked."""
        name, asked = start.order.job, start.asked
        if asked.processes > 1:
            return
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
