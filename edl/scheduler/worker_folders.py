"""The folder that each worker has below its node's, and the worker's processes, whatever they do to be overlooked.

To make the folder is to claim the worker's id for good. It holds what the worker's warden is told and leaves:
`start.json`, `exit.json`, and what its engine knows it by.

Three things tell a worker's processes: the folder's path as the launch's mark in the environment, which a process may
clear; descent from the warden, which adopts what loses its parent; and, where the warden was killed, the session that
the worker was begun in. A process that has left all three (by a session of its own, a cleared environment, and a warden
that was killed from outside) is not found.

Owns: these files, finding these processes and killing them. Does not own: whether a worker is to end (the engines).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any, NamedTuple

from edl.cluster.queue.end_causes import TAIL_BYTES, EndEvidence
from edl.file_lock import is_held
from edl.host.host_processes import pid_space, process_start_time
from edl.launch.job_processes import MARK, marked
from edl.scheduler.cluster_home import put
from edl.scheduler.worker_engine import Start
from edl.scheduler.worker_wrapper import ListedProcess, below, listed

WARDEN = Path(__file__).with_name("worker_wrapper.py")
KEPT_LOGS = 200  # files of one job
KEPT_CLAIMS = 1000  # folders of workers that are gone, of one node
PRUNED_AT_ONCE = 100


class WorkerFolders:
    def __init__(self, folder: Path, logs: Path) -> None:
        """`folder`: of the node. `logs`: below it each job has a folder."""
        self.workers = folder / "workers"
        self._logs = logs
        self._forgotten = 0
        self.workers.mkdir(mode=0o700, parents=True, exist_ok=True)

    def __getitem__(self, worker: str) -> Path:
        return self.workers / worker

    def kept(self) -> list[Path]:
        """Return the folders of workers that were not forgotten."""
        self._prune()
        return [folder for folder in sorted(self.workers.iterdir()) if not (folder / "forgotten").exists()]

    def claim(self, start: Start, **told: Any) -> Path | None:
        """Claim a worker's id: make a folder with all that its warden needs. None: the id was claimed before, or
        another agent has withdrawn this claim by now. Raises OSError.
        """
        order = start.order
        folder = self[order.id]
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            return None
        put(folder / "device", " ".join(map(str, order.devices)).encode())
        logs = self._logs / order.job / "logs"
        logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        _prune(logs)
        environ = {**start.environ, MARK: mark_of(folder)}
        worker = {"command": start.command, "folder": start.asked.folder, "environ": environ}
        put(folder / "start.json", json.dumps({**worker, **told}).encode())
        if not _settle(folder):
            (folder / "start.json").unlink(missing_ok=True)
            return None
        return folder

    def warden(self, start: Start) -> list[str]:
        folder, log = self[start.order.id], self._logs / start.order.job / "logs" / f"{start.order.id}.log"
        return [sys.executable, "-I", "-S", str(WARDEN), str(folder), str(log)]

    def withdraw(self, worker: str) -> bool:
        """Tell whether its warden had not begun: then it never starts anything, also where an agent that was paused
        while it made the claim goes on with it. Raises OSError.
        """
        folder = self[worker]
        unsettled = not (folder / "exit.json").exists() and _settle(folder)
        try:
            (folder / "start.json").unlink()
        except FileNotFoundError:
            return unsettled
        return True

    def bar(self, worker: str) -> Path:
        """Claim the id, unless it was claimed before, and withdraw it. Raises OSError."""
        self[worker].mkdir(mode=0o700, exist_ok=True)
        self.withdraw(worker)
        return self[worker]

    def is_forgotten(self, worker: str) -> bool:
        return (self[worker] / "forgotten").exists()

    def forget(self, worker: str) -> None:
        if self[worker].is_dir():
            with contextlib.suppress(OSError):  # a full disk: the next agent hears of it, and forgets it
                put(self[worker] / "forgotten", b"")
            self._forgotten += 1
            if self._forgotten % PRUNED_AT_ONCE == 0:
                self._prune()

    def _prune(self) -> None:
        """Keep the newest. The ids of the others are in no order any more, and in none to come."""
        gone: list[tuple[float, Path]] = []
        for folder in self.workers.iterdir():
            with contextlib.suppress(FileNotFoundError):
                gone.append(((folder / "forgotten").stat().st_mtime, folder))
        for _, folder in sorted(gone, reverse=True)[KEPT_CLAIMS:]:
            shutil.rmtree(folder, ignore_errors=True)


def _settle(folder: Path) -> bool:
    """Decide the claim, once: the agent that makes it does so when all is there, or another that finds it half made."""
    try:
        os.close(os.open(folder / "settled", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except (FileExistsError, FileNotFoundError):  # or it was forgotten and removed
        return False
    return True


def mark_of(folder: Path) -> str:
    """Return the mark of all processes of a worker: ids alone may be those of another cluster's workers, too."""
    return str(folder)


def devices_of(folder: Path) -> tuple[int, ...]:
    found = (folder / "device").read_text().split() if (folder / "device").exists() else []
    return tuple(map(int, found)) or (0,)


def evidence(folder: Path) -> EndEvidence:
    """Return what the warden has written of the end; nothing, where the warden was killed itself."""
    found = _left(folder)
    if "code" not in found:
        codes = [path.name.removeprefix("exit-") for path in folder.glob("exit-*")]  # on a full disk, by a name alone
        return EndEvidence(code=int(codes[0])) if codes else EndEvidence()
    return EndEvidence(
        code=int(found["code"]),
        tail=str(found.get("tail", ""))[-TAIL_BYTES:],
        starved=bool(found.get("starved")),
        refused=str(found.get("refused", "")),
    )


def was_terminated(folder: Path) -> bool:
    """Tell whether the warden had SIGTERM while the worker ran."""
    return bool(_left(folder).get("terminated"))


def _left(folder: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((folder / "exit.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return found


def _prune(logs: Path) -> None:
    """Keep the newest."""
    found: list[tuple[float, Path]] = []
    for path in logs.glob("*.log*"):
        with contextlib.suppress(FileNotFoundError):  # a warden has renamed it meanwhile
            found.append((path.stat().st_mtime, path))
    for _, path in sorted(found, reverse=True)[KEPT_LOGS:]:
        path.unlink(missing_ok=True)


def path_here() -> str:
    return os.environ.get("PATH", os.defpath)


def left(folder: Path) -> list[int]:
    """List the pids of the worker's processes, its warden among them."""
    return sorted(_found(folder))


def lives(folder: Path) -> bool:
    """Tell whether a worker lives, also on another machine that has this folder, where it cannot be seen from here."""
    return bool(left(folder)) or is_held(folder / "life")


def script_of(folder: Path) -> int:
    """Return the pid of the worker's own process, as its warden has written it down; 0: nothing is written, or on
    another machine.
    """
    written = _written(folder)
    return 0 if written is None else written.worker


def kill(folder: Path) -> None:
    """Kill a worker's processes except the warden, which says how the worker has ended and adopts orphans. A warden
    that is all that is left is killed itself.
    """
    found, written = _found(folder), _written(folder)
    begun = [pid for pid in found if written is None or pid != written.warden]
    # The worker first: a script that waits for its children would see them end, and could end by itself with 0, which
    # would be taken for the end of its training.
    for pid in sorted(begun or found, key=lambda pid: (written is None or pid != written.worker, pid)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            handle = os.pidfd_open(pid)
            try:
                if process_start_time(pid) == found[pid]:  # else the handle is that of a stranger who got the pid since
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                os.close(handle)


class _Written(NamedTuple):
    warden: int
    warden_began: int
    worker: int
    worker_began: int


def _written(folder: Path) -> _Written | None:
    """Return what the warden wrote down; None: nothing, or pids of another machine."""
    try:
        space, *numbers = (folder / "processes").read_text().split()
        return _Written(*map(int, numbers)) if space == pid_space() else None
    except (OSError, ValueError, TypeError):
        return None


def _found(folder: Path) -> dict[int, int]:
    """Return the pids of the worker's processes, and when each began."""
    pids = set(marked(mark_of(folder)))
    here, written = listed(), _written(folder)
    if written is not None:
        if (seen := here.get(written.warden)) is not None and seen.started == written.warden_began:
            pids |= {written.warden} | below(written.warden, here)
        pids |= _session(written, here)
    return {pid: here[pid].started for pid in pids - {os.getpid()} if pid in here and not here[pid].ended}


def _session(written: _Written, here: dict[int, ListedProcess]) -> set[int]:
    """Find the processes of the worker's session. While one of them lives, no other session gets its number; a leader
    of that number is the worker, or none.
    """
    leader = here.get(written.worker)
    if leader is not None and leader.started != written.worker_began:
        return set()
    return {
        pid for pid, seen in here.items() if seen.session == written.worker and seen.started >= written.worker_began
    }
