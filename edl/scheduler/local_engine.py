"""Workers as processes of this machine, each with a warden beside it that outlives the agent.

A worker has a folder of its own below the node's; to make it is to claim its id. All of its processes carry its
folder's path as the mark of a launch, so that none is overlooked, and none of another cluster's is taken for one: a
worker is gone when its warden is, and no process with its mark is left. What lingers after the script's end is given
`LINGER_S`, then killed.

Owns: these files and processes. Does not own: what is started when.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

from edl.cluster.queue.agent import WorkerFound
from edl.cluster.queue.causes import TAIL_BYTES, EndEvidence
from edl.host.processes import process_start_time, spawn_daemon, watch_exit
from edl.launch.processes import MARK, is_running, marked, signal_marked
from edl.scheduler.engine import Ended, Start
from edl.scheduler.places import put

logger = logging.getLogger("edl")

WARDEN = Path(__file__).with_name("warden.py")
LINGER_S = 15.0  # for daemons of edl, which outlive their trainers a little
POLL_S = 0.1
KEPT_LOGS = 200  # files of one job
KEPT_CLAIMS = 1000  # folders of workers that are gone, of one node
PRUNED_AT_ONCE = 100


class LocalEngine:
    """One node's."""

    def __init__(self, folder: Path, logs: Path, ended: Ended) -> None:
        """`folder`: of the node. `logs`: below it each job has a folder."""
        self._workers = folder / "workers"
        self._logs = logs
        self._ended = ended
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._forgotten = 0
        self._workers.mkdir(mode=0o700, parents=True, exist_ok=True)

    async def find(self) -> list[WorkerFound]:
        _prune_claims(self._workers)
        folders = sorted(self._workers.iterdir())
        return [self._found(folder) for folder in folders if not (folder / "forgotten").exists()]

    async def start(self, start: Start) -> int | None:
        order = start.order
        folder = self._workers / order.id
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            return None
        put(folder / "device", str(order.device).encode())
        logs = self._logs / order.job / "logs"
        logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        await asyncio.to_thread(_prune, logs)
        environ = {**start.environ, MARK: mark_of(folder)}
        told = {"command": start.asked.command, "folder": start.asked.folder, "environ": environ}
        put(folder / "start.json", json.dumps(told).encode())
        command = [sys.executable, "-I", "-S", str(WARDEN), str(folder), str(logs / f"{order.id}.log")]
        ours = {MARK: mark_of(folder), "PATH": os.environ.get("PATH", os.defpath)}
        ours |= {name: environ[name] for name in ("EDL_HOME",) if name in environ}
        pid = await asyncio.to_thread(spawn_daemon, command, ours, folder / "warden.log")
        try:
            put(folder / "warden", f"{pid} {process_start_time(pid) or 0}".encode())
        except OSError as error:  # it runs all the same, and is found by its mark
            logger.warning("the pid of %s cannot be written down: %s", order.id, error)
        self._watch(order.id, pid)
        return pid

    def end(self, worker: str, *, kill: bool) -> None:
        if kill:
            signal_marked(mark_of(self._workers / worker), signal.SIGKILL)
            return
        pid, started = _warden(self._workers / worker)
        if pid and is_running(pid, started):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def forget(self, worker: str) -> None:
        folder = self._workers / worker
        if folder.is_dir():
            put(folder / "forgotten", b"")
            self._forgotten += 1
            if self._forgotten % PRUNED_AT_ONCE == 0:
                _prune_claims(self._workers)

    async def close(self) -> None:
        for task in self._watches.values():
            task.cancel()
        await asyncio.gather(*self._watches.values(), return_exceptions=True)

    # -------------------------------------------------------------------------------------------------------- inside

    def _found(self, folder: Path) -> WorkerFound:
        """Also one that was claimed, and whose warden's pid was not written down before its agent died."""
        pid, started = _warden(folder)
        alive = bool(pid and is_running(pid, started)) or bool(marked(mark_of(folder)))
        device = int((folder / "device").read_text() or 0) if (folder / "device").exists() else 0
        if alive:
            self._watch(folder.name, pid if pid and is_running(pid, started) else 0)
            return WorkerFound(folder.name, device, pid, None)
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
        clock, folder = asyncio.get_running_loop().time, self._workers / worker
        mark, until = mark_of(folder), math.inf
        while await asyncio.to_thread(marked, mark):
            if until == math.inf and (pid or _has_ended(folder)):
                until = clock() + LINGER_S
            if clock() > until:
                await asyncio.to_thread(signal_marked, mark, signal.SIGKILL)
            await asyncio.sleep(POLL_S)
        del self._watches[worker]
        self._ended(worker, evidence(folder))


def mark_of(folder: Path) -> str:
    """Of all processes of the worker that has this folder: worker ids alone may be those of another cluster, too."""
    return str(folder)


def _has_ended(folder: Path) -> bool:
    """Asked where its warden is not known to run: that it did run is written down, or how its worker ended."""
    return _warden(folder) != (0, 0) or (folder / "exit.json").exists()


def evidence(folder: Path) -> EndEvidence:
    """What the warden has left; nothing, where it was killed itself."""
    try:
        found: dict[str, Any] = json.loads((folder / "exit.json").read_bytes())
    except (OSError, ValueError):
        return EndEvidence()
    return EndEvidence(
        code=int(found["code"]),
        tail=str(found.get("tail", ""))[-TAIL_BYTES:],
        starved=bool(found.get("starved")),
        refused=str(found.get("refused", "")),
    )


def _warden(folder: Path) -> tuple[int, int]:
    try:
        pid, started = (folder / "warden").read_text().split()
    except (OSError, ValueError):
        return 0, 0
    return int(pid), int(started)


def _prune_claims(workers: Path) -> None:
    """The newest stay. The ids of the others are in no order any more, and in none to come."""
    gone: list[tuple[float, Path]] = []
    for folder in workers.iterdir():
        with contextlib.suppress(FileNotFoundError):
            gone.append(((folder / "forgotten").stat().st_mtime, folder))
    for _, folder in sorted(gone, reverse=True)[KEPT_CLAIMS:]:
        shutil.rmtree(folder, ignore_errors=True)


def _prune(logs: Path) -> None:
    """The newest stay."""
    found: list[tuple[float, Path]] = []
    for path in logs.glob("*.log*"):
        with contextlib.suppress(FileNotFoundError):  # a warden has renamed it meanwhile
            found.append((path.stat().st_mtime, path))
    for _, path in sorted(found, reverse=True)[KEPT_LOGS:]:
        path.unlink(missing_ok=True)
