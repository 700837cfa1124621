"""Workers as processes of this machine, each with a warden beside it that outlives the agent.

A worker is gone when its warden is, and no process of it is left (`worker_processes`). What lingers after the script's
end is given `LINGER_S`, then killed.

Owns: these processes. Does not own: their files (`worker_folders`), nor what is started when.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
from pathlib import Path

from edl.cluster.queue.agent_machine import WorkerFound
from edl.host.host_processes import process_start_time, spawn_daemon, watch_exit
from edl.launch.forking import Warden
from edl.launch.job_processes import MARK, is_running
from edl.scheduler import worker_processes
from edl.scheduler.cluster_home import put
from edl.scheduler.warm_jobs import WarmJobs
from edl.scheduler.worker_engine import Ended, Start
from edl.scheduler.worker_folders import WorkerFolders, device_of, evidence, mark_of, path_here

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
            worker_processes.kill(self._folders[worker])
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
        """Return what has become of a worker, also where its agent died before it wrote down the warden's pid."""
        pid, started = _warden(folder)
        alive = bool(pid and is_running(pid, started)) or worker_processes.lives(folder)
        device = device_of(folder)
        if alive:
            self._watch(folder.name, pid if pid and is_running(pid, started) else 0)
            return WorkerFound(folder.name, device, pid, None)
        self._folders.withdraw(folder.name)
        return WorkerFound(folder.name, device, pid, evidence(folder))

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
        while await asyncio.to_thread(worker_processes.lives, folder):
            if until == math.inf and (pid or _has_ended(folder)):
                until = clock() + LINGER_S
            if clock() > until:
                await asyncio.to_thread(worker_processes.kill, folder)
            await asyncio.sleep(POLL_S)
        del self._watches[worker]
        found = evidence(folder)
        self._warm.ended(worker, None if found.told else found.code)
        self._ended(worker, found)


def _has_ended(folder: Path) -> bool:
    """Asked where its warden is not known to run: that it did run is written down, or how its worker ended."""
    return _warden(folder) != (0, 0) or (folder / "exit.json").exists()


def _warden(folder: Path) -> tuple[int, int]:
    try:
        pid, started = (folder / "warden").read_text().split()
    except (OSError, ValueError):
        return 0, 0
    return int(pid), int(started)
