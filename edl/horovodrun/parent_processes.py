"""Find the processes above a stand-in: horovodrun's driver, and the process between that carries out its orders.

Horovod starts each local worker below a process of its own, the leader of a session, which ends all processes below it
as soon as the driver is gone. So when the driver was killed, that process is killed first: it waits five seconds
between asking and killing. On another host there is none: sshd leaves the processes that it has started alone.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

from edl.host.host_processes import ExitWatch, process_start_time, watch_exit

MARK = b"multiprocessing"


class Launcher:
    """The known processes above this one; possibly none."""

    def __init__(self, middleman: int | None, driver: int | None) -> None:
        self._middleman, self._driver = middleman, driver
        self._started = None if middleman is None else process_start_time(middleman)
        self._watch: ExitWatch | None = None
        self.gone = False

    @classmethod
    def of_this_process(cls) -> Launcher:
        above, middleman = _ancestors(os.getpid()), os.getsid(0)
        if middleman not in above or MARK not in _command(middleman):
            return cls(None, None)
        return cls(middleman, next(iter(_ancestors(middleman)), None))

    @property
    def is_here(self) -> bool:
        """Tell whether the driver is on this host, so that `watch` reports its end."""
        return self._driver is not None

    def watch(self, gone: Callable[[], object]) -> None:
        """Call `gone` when the driver has ended, after killing the process between, which would kill the workers."""
        if self._driver is not None:
            self._watch = watch_exit(self._driver, lambda _: self._on_gone(gone))

    def _on_gone(self, gone: Callable[[], object]) -> None:
        self.gone = True
        middleman = self._middleman
        if middleman is not None and process_start_time(middleman) == self._started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(middleman, signal.SIGKILL)
        gone()


def _ancestors(pid: int) -> list[int]:
    """Return the ancestors of a process, the nearest first."""
    found: list[int] = []
    while (pid := _parent(pid)) > 1:
        found.append(pid)
    return found


def _parent(pid: int) -> int:
    try:
        line = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return 0
    return int(line[line.rindex(")") + 2 :].split()[1])


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
