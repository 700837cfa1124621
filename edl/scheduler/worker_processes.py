"""The processes of one worker on this machine, whatever they have done to be overlooked.

Three things tell them: the launch's mark in the environment, which a process may clear; descent from the warden, which
adopts what loses its parent; and, where the warden was killed, the session that the worker was begun in. Who has left
all three (by a session of its own, a cleared environment, and a warden that was killed from outside) is not found.

Owns: which processes a worker has, and killing them. Does not own: its warden's work (`warden`), nor whether it is to
end (the engines).
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import NamedTuple

from edl.file_lock import is_held
from edl.host.host_processes import pid_space, process_start_time
from edl.launch.job_processes import marked
from edl.scheduler.worker_folders import mark_of
from edl.scheduler.worker_wrapper import ListedProcess, below, listed


def left(folder: Path) -> list[int]:
    """List those of the worker that has this folder, its warden among them."""
    return sorted(_found(folder))


def lives(folder: Path) -> bool:
    """Tell whether a worker lives, also on another machine that has this folder, where it cannot be seen from here."""
    return bool(left(folder)) or is_held(folder / "life")


def script_of(folder: Path) -> int:
    """Return the pid of the worker's own process, as its warden has written it down; 0: it has not, or not of here."""
    written = _written(folder)
    return 0 if written is None else written.worker


def kill(folder: Path) -> None:
    """Kill a worker's processes except the warden, which says how the worker has ended and adopts orphans. A warden
    that is all that is left is killed itself.
    """
    found, written = _found(folder), _written(folder)
    begun = [pid for pid in found if written is None or pid != written.warden]
    for pid in begun or found:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            handle = os.pidfd_open(pid)
            try:
                if process_start_time(pid) == found[pid]:  # else the handle is that of a stranger who got the pid since
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                os.close(handle)


class _Written(NamedTuple):
    """The word of a warden: pids, and when each began."""

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
    """Find its processes, and when each began."""
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
