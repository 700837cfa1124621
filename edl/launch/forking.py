"""Workers that are forked from a process that has imported what they import (`edl.host.warm_process`), and which have
their daemons forked from a second one.

Owns: these processes, what they are told, and a forked worker as its launcher holds it. Does not own: when they are
wanted (`edl.launch.warm_starts`), nor what they do.

Everything runs in the main thread's event loop: the kernel ties the process and its forks to that thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from edl.coordination import coordinator_settings, store
from edl.host import daemon_process, warm_process
from edl.host.host_processes import adopting_orphans, watch_exit
from edl.host.imported_modules import Imported, installed_folders, told_by
from edl.launch.child_worker import DIE_WITH_PARENT, search_path
from edl.launch.warm_starts import (
    EndWarm,
    ImportsDone,
    LaunchEnds,
    RingSeen,
    StartWarm,
    WarmEvent,
    WarmGone,
    WarmRefused,
    WarmStage,
    WarmStarts,
    python_line,
)

KILLED = {-signal.SIGKILL, -signal.SIGTERM}  # by another process
ROOM_BYTES = 4096  # for variables that differ between workers


class ForkedWorker:
    """A child of this process, with the part of `subprocess.Popen` that `edl.launch.child_worker` uses."""

    def __init__(self, pid: int, stdout: IO[bytes], stderr: IO[bytes]) -> None:
        self.pid, self.stdout, self.stderr = pid, stdout, stderr
        self._code: int | None = None

    def poll(self) -> int | None:
        return self._reap(os.WNOHANG)

    def wait(self) -> int:
        code = self._reap(0)
        assert code is not None
        return code

    def _reap(self, how: int) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, how)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code


class WarmImports(msgspec.Struct, frozen=True):
    """Answer of a warm process after it has imported modules."""

    modules: int = 0
    seconds: float = 0.0
    refused: str = ""


class Warden(msgspec.Struct, frozen=True):
    """Order to fork a warden, which forks its worker itself (`edl.scheduler.worker_wrapper`)."""

    command: Sequence[str]  # as a new process would have it; the last two words are its arguments
    environ: Mapping[str, str]
    log: Path


class WarmPython:
    """A process that imports modules once, and forks workers."""

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        log: Path,
        exited: Callable[[int], None],
        folder: Path = Path(),
        what: str = "workers",
    ) -> None:
        """Start it for processes of `command` in `folder`; `hindrance_of` must allow it. Raises OSError."""
        line = python_line(command)
        assert line is not None
        ours, its = socket.socketpair()
        room = sum(len(os.fsencode(word)) + 1 for word in command) + ROOM_BYTES
        with its, log.open("ab") as output:
            passed = (its.fileno(), output.fileno())
            self._process = subprocess.Popen(
                [
                    *DIE_WITH_PARENT,
                    line.program,
                    *line.flags,
                    warm_process.__file__,
                    what,
                    *map(str, passed),
                    "x" * room,
                ],
                env={**environ, warm_process.PADDING: "x" * ROOM_BYTES},
                stdin=subprocess.DEVNULL,
                # As the outputs of those that it forks: pipes of a worker, a daemon's log. It writes to the log itself.
                stdout=subprocess.PIPE if what == "workers" else output,
                stderr=subprocess.STDOUT,
                pass_fds=passed,
                start_new_session=True,
                cwd=folder,
            )
        self._command, self._line, self._socket = list(command), line, ours
        self.pid = self._process.pid
        self._watch = watch_exit(self.pid, exited)

    async def import_modules(
        self, told: Imported, *, eager: bool, daemons: WarmPython | None = None
    ) -> WarmImports | None:
        """Import modules; None if the process has ended. It may take minutes while workers are busy, unless `eager`.

        `daemons`: forks the daemons of workers that this process forks.
        """
        self._socket.setblocking(False)
        lent = [] if daemons is None else [daemons._socket.fileno()]
        try:
            daemon_process.send(self._socket, b"i", {**msgspec.to_builtins(told), "eager": eager}, *lent)
            answer = await asyncio.get_running_loop().sock_recv(self._socket, 65536)
            return msgspec.json.decode(answer, type=WarmImports)
        except (OSError, msgspec.MsgspecError):
            return None

    def fork(self, environ: Mapping[str, str]) -> ForkedWorker | None:
        """Return None if the process does not answer and is of no use any more."""
        try:
            told = self._told(shown=self._command, environ=dict(environ))
        except OSError:  # the launcher's folder is gone
            return None
        with contextlib.ExitStack() as stack:
            pipes = [os.pipe() for _ in range(2)]
            outputs = [os.fdopen(reader, "rb") for reader, _ in pipes]
            for _, writer in pipes:
                stack.callback(os.close, writer)
            with adopting_orphans():
                pid = daemon_process.fork(self._socket, told, [writer for _, writer in pipes], _is_child)
            if pid:
                return ForkedWorker(pid, *outputs)
            for output in outputs:
                output.close()
            return None

    def fork_warden(self, warden: Warden) -> int:
        """Return the pid of a warden, which outlives this process; 0 if the process does not answer."""
        [*_, program, _, _] = warden.command
        try:
            told = self._told(warden=program, shown=warden.command, environ=dict(warden.environ))
            log = os.open(warden.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError:
            return 0
        try:
            return daemon_process.fork(self._socket, told, [log, log])
        finally:
            os.close(log)

    def _told(self, **more: Any) -> dict[str, Any]:
        line = self._line
        return {"kind": line.kind, "name": line.name, "arguments": line.arguments, "folder": str(Path.cwd()), **more}

    def end(self) -> None:
        self._watch.cancel()
        with self._process, self._socket:
            self._process.kill()


class CommandPlace(msgspec.Struct, frozen=True):
    environ: Mapping[str, str]  # the programs of its PATH
    folder: Path


HERE: Final = CommandPlace(os.environ, Path())


class Forks:
    """Forked workers of one launch, or of one job on a node: carry out the decisions of `WarmStarts`."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        tell: Callable[[str], object],
        wanted: str,
        place: CommandPlace = HERE,
    ) -> None:
        """Call `tell` with each change of `words`. `wanted` is the value of --warm-starts."""
        hindrance = "--warm-starts off" if wanted == "off" else hindrance_of(command, place)
        self._eager = wanted == "eager"
        self._machine = WarmStarts(hindrance)
        self._command, self._log, self._tell, self._folder = command, log, tell, place.folder
        self._said = ""
        self._warm: WarmPython | None = None
        self._daemons: WarmPython | None = None
        self._told: Imported | None = None
        self._environ: Mapping[str, str] = {}
        self._importing: asyncio.Task[None] | None = None
        self._unproven: set[Hashable] = set()

    @property
    def words(self) -> str:
        return self._machine.words

    def see(self, pids: Collection[int], environ: Callable[[], Mapping[str, str]]) -> None:
        """Note the job's state. `pids`: workers of this launch in the ring; `environ`: variables of a next worker."""
        for pid in pids:
            self.proven(pid)
        if self._machine.stage is WarmStage.NONE:
            told = [told for pid in pids if (told := told_by(pid)) is not None]
            self._told = told[0] if told else None
            self._environ = environ()
        seen = RingSeen(bool(pids), self._told is not None, available_bytes())
        self._handle(seen)

    def start(self, environ: Mapping[str, str]) -> ForkedWorker | None:
        """Return None if a new process is to be started instead."""
        if self._machine.stage is not WarmStage.READY:
            return None
        assert self._warm is not None
        worker = self._warm.fork(environ)
        if worker is None:
            self._handle(WarmGone())
        else:
            self.forked(worker.pid)
        return worker

    def forked(self, worker: Hashable) -> None:
        self._unproven.add(worker)

    def proven(self, worker: Hashable) -> None:
        """Note that a worker has come as far as workers that were not forked."""
        self._unproven.discard(worker)

    def ended(self, worker: Hashable, code: int | None) -> None:
        """Note that a worker has ended. `code`: its exit status, if known.

        If it was forked and failed by itself before it was in a ring, no more workers are forked: a new process may get
        further.
        """
        unproven = worker in self._unproven
        self._unproven.discard(worker)
        if unproven and code not in KILLED | {None, 0}:
            self._handle(WarmRefused("a worker that was forked has ended before it was in a ring"))

    async def start_warden(self, warden: Warden, worker: str) -> int:
        """Return the pid of a forked warden; 0 if a new process is to be started instead."""
        warm = self._warm
        if warm is None or self._machine.stage is not WarmStage.READY:
            return 0
        pid = await asyncio.to_thread(warm.fork_warden, warden)
        if pid:
            self.forked(worker)
        elif warm is self._warm:
            self._handle(WarmGone())
        return pid

    def end(self) -> None:
        """End the process, as no worker is started any more."""
        self._handle(LaunchEnds())

    def _handle(self, event: WarmEvent) -> None:
        for command in self._machine.handle(event):
            match command:
                case StartWarm():
                    self._start()
                case EndWarm():
                    self._end()
        if self._machine.words != self._said:
            self._said = self._machine.words
            self._tell(self._said)

    def _start(self) -> None:
        assert self._told is not None
        try:
            self._warm = WarmPython(self._command, self._environ, self._log, self._exited, self._folder)
        except OSError as error:
            self._handle(WarmRefused(f"no process can be started: {error.strerror}"))
            return
        self._daemons = self._start_daemons()
        self._importing = asyncio.create_task(self._import(self._warm, self._told, self._daemons))

    def _start_daemons(self) -> WarmPython | None:
        """Start the process that forks daemons. Return None where that fails: daemons are started anew then."""
        command, environ = [sys.executable, *daemon_process.COMMAND], daemon_process.environ_of(self._environ)
        with contextlib.suppress(OSError):
            return WarmPython(command, environ, self._log, self._daemons_exited, self._folder, "daemons")
        return None

    async def _import(self, warm: WarmPython, told: Imported, daemons: WarmPython | None) -> None:
        if daemons is not None:
            ready = await daemons.import_modules(modules_of_daemons(self._environ), eager=self._eager)
            if (ready is None or ready.refused) and daemons is self._daemons:
                self._end_daemons()
        done = await warm.import_modules(told, eager=self._eager, daemons=self._daemons)
        if warm is not self._warm:
            return
        if done is None:
            self._handle(WarmGone())
        else:
            self._handle(WarmRefused(done.refused) if done.refused else ImportsDone(done.modules, done.seconds))

    def _exited(self, _: int) -> None:
        self._handle(WarmGone())

    def _daemons_exited(self, _: int) -> None:
        self._end_daemons()

    def _end(self) -> None:
        if self._importing is not None:
            self._importing.cancel()
            self._importing = None
        if self._warm is not None:
            self._warm.end()
            self._warm = None
        self._end_daemons()

    def _end_daemons(self) -> None:
        """End the process that forks daemons; later ones are started anew."""
        if self._daemons is not None:
            self._daemons.end()
            self._daemons = None


def modules_of_daemons(environ: Mapping[str, str]) -> Imported:
    """Return what daemons import before they know their job's coordinator, and to connect to it."""
    coordinator = coordinator_settings.from_environment(environ)
    of_coordinator = [] if coordinator is None else [store.MODULES[coordinator.kind]]
    return Imported((daemon_process.MODULE, *of_coordinator), (), installed_folders())


def hindrance_of(command: Sequence[str], place: CommandPlace = HERE) -> str:
    """Say why workers of this command cannot be forked; empty if they can."""
    line = python_line(command)
    if line is None:
        return "the command is not `python SCRIPT.py` or `python -m MODULE`"
    apart = "/" in line.program and not line.program.startswith("/")
    program = f"{place.folder}/{line.program}" if apart else line.program
    found = shutil.which(program, path=search_path(place.environ))
    if found is None or not Path(found).parent.samefile(Path(sys.executable).parent):
        return f"{line.program} is not the Python that edl is in"
    if line.kind == "script" and not (place.folder / line.name).is_file():
        return f"{line.name} is not one file"
    return ""


def available_bytes() -> int:
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    return 0


def _is_child(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return False
