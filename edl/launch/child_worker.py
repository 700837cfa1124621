"""A worker of this machine as its launcher holds it: its processes, their end, and their output.

A worker of several processes starts, prints and ends as one: a bad end of one process is that of all.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple, Protocol

from edl.host.host_processes import is_locked, watch_exit
from edl.launch.worker_output import LinePrefixer, LineTarget, Printer, Sink, ToldOnce, WorkerNumbers, forward_file

NOTICED_S = 0.3  # by then a daemon that holds processes of its worker says so
HELD_S = 60.0  # so long it may hold them
DIE_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL", "--")


class WorkerProcess(Protocol):
    """A child of this process: a `subprocess.Popen` or a `ForkedWorker`."""

    @property
    def pid(self) -> int: ...

    @property
    def stdout(self) -> IO[bytes] | None: ...

    @property
    def stderr(self) -> IO[bytes] | None: ...

    def poll(self) -> int | None: ...

    def wait(self) -> int: ...


class WorkersTold(NamedTuple):
    """Parts that the outputs of a launch's workers share."""

    numbers: WorkerNumbers
    once: ToldOnce


class Worker:
    """A running trainer. Its output goes to the launcher's, and to `folder` if there is one."""

    def __init__(
        self,
        slot: int,
        process: WorkerProcess,
        printer: Printer,
        folder: Path | None,
        told: WorkersTold,
        limb: int | None = None,
    ) -> None:
        """`limb`: its number among the processes of its worker, of several."""
        self._limb = limb
        self.slot = slot
        self.pid = process.pid
        self._process = process
        self._files = [] if folder is None else [_file(folder / "stdout"), _file(folder / "stderr")]
        number = told.numbers.start(slot) if not limb else told.numbers.of(slot)
        self._lines = {name: LinePrefixer(_prefix(number, name, limb)) for name in ("stdout", "stderr")}
        streams = ((process.stdout, "stdout", printer.stdout), (process.stderr, "stderr", printer.stderr))
        self._forwards = [
            asyncio.create_task(
                forward_file(stream, self._lines[name], printer, LineTarget(ours, self._files[i : i + 1], told.once))
            )
            for i, (stream, name, ours) in enumerate(streams)
            if stream is not None
        ]

    @property
    def pids(self) -> list[int]:
        return [self.pid]

    def take_number(self, number: int) -> None:
        """Set the number in front of the lines to come."""
        for name, lines in self._lines.items():
            lines.prefix = _prefix(number, name, self._limb)

    def when_exited(self, tell: Callable[[int, int], None]) -> None:
        """Call `tell` with slot and exit status, once."""
        watch_exit(self.pid, lambda _: tell(self.slot, self._process.wait()))

    def signal(self, signum: signal.Signals) -> None:
        """Signal the trainer and its whole process group, as long as the trainer runs."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signum)

    async def wait_printed(self, timeout_s: float) -> None:
        """Wait until the output has ended; children may hold the pipes after the worker."""
        _, late = await asyncio.wait(self._forwards, timeout=timeout_s)
        for task in late:
            task.cancel()
        for file in self._files:
            file.close()


def search_path(environ: Mapping[str, str]) -> str:
    """Return the PATH of a worker. This Python's folder comes first, so that `python` is the one that edl is in."""
    return os.pathsep.join(filter(None, (str(Path(sys.executable).parent), environ.get("PATH", os.defpath))))


def start_process(command: Sequence[str], environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Call it from the main thread: the kernel ends the trainer together with the thread that started it."""
    return subprocess.Popen(
        [*DIE_WITH_PARENT, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(environ),
        start_new_session=True,
    )


def _prefix(number: int, stream: str, limb: int | None) -> str:
    # As horovodrun has it.
    return f"[{number}]<{stream}>:" if limb is None else f"[{number}.{limb}]<{stream}>:"


def _file(path: Path) -> Sink:
    return Sink(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644))


class LimbProcesses:
    """The processes of one worker. The job knows it by the first."""

    def __init__(self, limbs: Sequence[Worker], mark: Path) -> None:
        """`mark`: a file that the daemon keeps locked as long as it holds processes (`edl.daemon.limb_seats`)."""
        self._mark = mark
        self.slot, self.pid = limbs[0].slot, limbs[0].pid
        self._limbs = list(limbs)
        self._running = len(self._limbs)
        self._code = 0  # of the first process that has ended badly
        self._ends = False  # it was told to

    @property
    def pids(self) -> list[int]:
        return [limb.pid for limb in self._limbs]

    def take_number(self, number: int) -> None:
        for limb in self._limbs:
            limb.take_number(number)

    def when_exited(self, tell: Callable[[int, int], None]) -> None:
        """Call `tell` with slot and exit status once all processes have ended."""

        def ended(slot: int, code: int) -> None:
            self._running -= 1
            if code and not self._code:
                self._code = code
                self._end_soon(HELD_S)
            if not self._running:
                tell(slot, self._code)

        for limb in self._limbs:
            limb.when_exited(ended)

    def _end_soon(self, within_s: float) -> None:
        """Kill the others, which would wait for the one that has ended. Where the daemon holds them, it does."""
        if self._running and not self._ends and within_s > 0 and (within_s == HELD_S or is_locked(self._mark)):
            asyncio.get_running_loop().call_later(NOTICED_S, self._end_soon, within_s - NOTICED_S)
        else:
            self.signal(signal.SIGKILL)

    def signal(self, signum: signal.Signals) -> None:
        """Signal all processes that run, with their process groups."""
        self._ends = True
        for limb in self._limbs:
            limb.signal(signum)

    async def wait_printed(self, timeout_s: float) -> None:
        await asyncio.gather(*(limb.wait_printed(timeout_s) for limb in self._limbs))
