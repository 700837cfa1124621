"""Living processes of this machine, as /proc shows them, and which of them belong to one launch.

Everything that a launch starts carries its mark in the environment, and children inherit it. So a launch finds all
it has started, whatever forked, changed its session or lost its parent since.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

from edl.host.host_processes import may_change_program, process_start_time

MARK = "EDL_LAUNCH"  # variable that holds the mark of a launch
POLL_S = 0.05
TERM_GRACE_S = 2.0
KILL_GRACE_S = 5.0
_LISTINGS = 20  # at most, on a machine that starts processes all the time
_EXEC_POLL_S = 0.001
_EXEC_S = 1.0  # for a process that changes its program; longer only where that comes from a disk that does not answer


def is_running(pid: int, started: int) -> bool:
    """Tell whether the process that began at that clock tick still runs. A zombie does not."""
    if process_start_time(pid) != started:
        return False
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return False


def is_marked(pid: int, mark: str) -> bool:
    return f"{MARK}={mark}".encode() in _environ(pid).split(b"\0")


def _environ(pid: int) -> bytes:
    """Return a process's environment at its start; empty if the process is gone, or another user's.

    For the moment in which a process changes its program (exec), the kernel shows an empty environment.
    """
    deadline = time.monotonic() + _EXEC_S
    try:
        while not (environ := Path(f"/proc/{pid}/environ").read_bytes()) and may_change_program(pid):
            if time.monotonic() > deadline:
                break
            time.sleep(_EXEC_POLL_S)
    except OSError:
        return b""
    return environ


def marked(mark: str) -> list[int]:
    """List the living processes of one launch, without the caller.

    One may fork, and end before it is looked at: so they are listed again while none is found and some are new.
    """
    looked_at: set[int] = {os.getpid()}
    for _ in range(_LISTINGS):
        new = _pids() - looked_at
        if found := [pid for pid in new if is_marked(pid, mark)]:
            return sorted(found)
        looked_at |= new
        if not new:
            break
    return []


def _pids() -> set[int]:
    return {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()}


def signal_marked(mark: str, signum: signal.Signals) -> list[int]:
    """Send a signal to all processes of one launch. Return those that got it."""
    reached = []
    for pid in marked(mark):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            handle = os.pidfd_open(pid)
            try:
                if is_marked(pid, mark):  # the handle may be that of a stranger who got the pid since
                    signal.pidfd_send_signal(handle, signum)
                    reached.append(pid)
            finally:
                os.close(handle)
    return reached


def wait_marked_gone(mark: str, timeout_s: float, hurry: threading.Event) -> bool:
    """Wait until no process of a launch is left. Return False after the time-out, or when `hurry` is set."""
    deadline = time.monotonic() + timeout_s
    while marked(mark):
        if time.monotonic() > deadline or hurry.wait(POLL_S):
            return False
    return True


def end_marked(mark: str, patience_s: float, hurry: threading.Event) -> list[int]:
    """End all processes of a launch: they have `patience_s` to go by themselves, then get TERM, and KILL in the end.

    Setting `hurry` skips to KILL. Returns those that are left even so, which hang in the kernel.
    """
    if wait_marked_gone(mark, patience_s, hurry):
        return []
    if not hurry.is_set():
        signal_marked(mark, signal.SIGTERM)
        if wait_marked_gone(mark, TERM_GRACE_S, hurry):
            return []
    deadline = time.monotonic() + KILL_GRACE_S
    while signal_marked(mark, signal.SIGKILL) and time.monotonic() < deadline:  # again: they may have forked meanwhile
        time.sleep(POLL_S)
    return marked(mark)
