"""A process that has imported a framework, and forks for each worker that is asked for: `zygote.py FRAMEWORK SOCKET`.

A fork is what the script would be after its imports, had it been started as `python script.py`: with the arguments,
environment, working directory and standard streams that it was asked for, in a session of its own, and with its own
command line and environment in /proc, where edl and its tests look for them. Fork and import exclude each other as
soon as there is a second thread, so there must be none here.

The stub that asks (stub.py) holds a connection: over it it hears the worker's pid, then its exit status. When the stub
dies, its worker is killed.

The "framework" edl is edl itself: what its commands, launchers, guards and daemons import. Forks of that one are asked
for as `python -c CODE` or `python -P -m MODULE` would be started.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import importlib.util
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys
import threading
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stub import ask, read_number

# The last one takes as long as all others, and is what the first optimizer of a script imports.
HOROVOD = ("horovod.torch",) if importlib.util.find_spec("horovod") else ()
TORCH = (*HOROVOD, "torch.utils.data", "edl.torch", "torch._dynamo")
MODULES = {
    "nothing": (),
    "torch": TORCH,
    "lightning": (*TORCH, "edl.lightning"),
    "transformers": (*TORCH, "edl.transformers", "edl.accelerate"),
    "tensorflow": ("horovod.tensorflow", "edl.tensorflow"),
    "edl": ("edl.cli", "edl.launch", "edl.daemon", "edl.coordination"),
}
OWN = "EDL_TEST_OWN"  # the socket of the zygote of edl itself, where daemons are forks
ASK_S = 10.0
STREAMS = 3


class Request:
    """What a worker shall be."""

    def __init__(self, asker: socket.socket) -> None:
        asker.settimeout(ASK_S)
        first, descriptors, _, _ = socket.recv_fds(asker, 65536, STREAMS)
        parts = [first]
        while part := asker.recv(65536):
            parts.append(part)
        asked: dict[str, Any] = json.loads(b"".join(parts))
        self.streams = descriptors
        self.command: list[str] = asked["command"]
        self.environ: dict[str, str] = asked["environ"]
        self.folder: str = asked["folder"]
        self.outlives: bool = asked["outlives"]


class Forks:
    """Those that live, each with its pidfd and who has asked for it."""

    def __init__(self, path: Path) -> None:
        self._poll = select.poll()
        self._listener = socket.socket(socket.AF_UNIX)
        working = path.with_suffix(".new")
        self._listener.bind(str(working))
        working.chmod(0o600)
        self._listener.listen(64)
        working.rename(path)  # there only once it can be called
        self._poll.register(self._listener, select.POLLIN)
        self._ends: dict[int, tuple[int, socket.socket]] = {}  # by pidfd
        self._askers: dict[int, tuple[int, socket.socket]] = {}  # by the connection's descriptor: pidfd
        self._outliving: set[int] = set()  # pidfds of those that end with no other process

    def serve(self) -> Request:
        """Returns in a fork only."""
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor == self._listener.fileno():
                    if request := self._accept():
                        return request
                elif descriptor in self._ends:
                    self._ended(descriptor)
                elif descriptor in self._askers:
                    self._gone(descriptor)

    def _accept(self) -> Request | None:
        asker, _ = self._listener.accept()
        try:
            request = Request(asker)
        except (OSError, ValueError):
            asker.close()  # who has asked is gone already
            return None
        threads = len(list(Path("/proc/self/task").iterdir()))
        assert threads == 1, f"{threads} threads, of which a fork has only one: here tests need EDL_TEST_COLD=1"
        pid = os.fork()
        if pid == 0:
            self._let_go(asker)
            return request
        for stream in request.streams:
            os.close(stream)
        handle = os.pidfd_open(pid)
        self._ends[handle] = pid, asker
        self._askers[asker.fileno()] = handle, asker
        if request.outlives:
            self._outliving.add(handle)
        self._poll.register(handle, select.POLLIN)
        self._poll.register(asker, 0)  # POLLHUP comes unasked
        _tell(asker, pid)
        return None

    def _ended(self, handle: int) -> None:
        pid, asker = self._ends.pop(handle)
        self._poll.unregister(handle)
        os.close(handle)
        self._outliving.discard(handle)
        _, status = os.waitpid(pid, 0)
        if asker.fileno() >= 0:
            self._poll.unregister(asker)
            del self._askers[asker.fileno()]
            _tell(asker, os.waitstatus_to_exitcode(status))
            asker.close()

    def _gone(self, descriptor: int) -> None:
        handle, asker = self._askers.pop(descriptor)
        self._poll.unregister(descriptor)
        asker.close()
        if handle in self._outliving:
            return
        pid, _ = self._ends[handle]  # it is not reaped yet, so that no other has its pid
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:  # it has come to no session of its own yet
            os.kill(pid, signal.SIGKILL)

    def _let_go(self, asker: socket.socket) -> None:
        """In a fork."""
        for descriptor in self._ends:
            os.close(descriptor)
        for _, other in self._askers.values():
            other.close()
        asker.close()
        self._listener.close()


def _tell(asker: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # it is gone, which poll() tells too
        asker.sendall(b"%d\n" % number)


# --------------------------------------------------------------------------------------------------------- a fork


class Places:
    """Where the kernel looks for what it shows of this process in /proc: made wide by padding as it was started."""

    def __init__(self) -> None:
        stat = Path("/proc/self/stat").read_text()
        fields = stat[stat.rindex(")") + 2 :].split()
        self._arguments, self._arguments_end, self._environ, self._environ_end = map(int, fields[45:49])

    def show(self, command: list[str], environ: dict[str, str]) -> None:
        """C's own pointers into the old environment must be gone by now."""
        self._write(self._arguments, self._arguments_end, command)
        self._write(self._environ, self._environ_end, [f"{name}={value}" for name, value in environ.items()])

    def _write(self, begin: int, end: int, words: list[str]) -> None:
        text = b"".join(os.fsencode(word) + b"\0" for word in words)
        assert len(text) < end - begin, "more padding is needed"
        ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)


def become(request: Request, zygote: int, added: dict[str, str], places: Places) -> None:
    """All that a new process would be."""
    os.setsid()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != zygote:
        os._exit(1)
    for number, stream in enumerate(request.streams):
        os.dup2(stream, number)
        os.close(stream)
    environ = added | request.environ
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(request.folder)
    sys.orig_argv = [sys.executable, *request.command]
    sys.argv = arguments(request.command)
    sys.path[0:1] = first_place(request.command)
    places.show(sys.orig_argv, environ)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()  # as Python does for its own `random`; else all forks draw the same numbers


def arguments(command: Sequence[str]) -> list[str]:
    return ["-c", *command[2:]] if command[0] == "-c" else ["-m", *command[3:]] if command[0] == "-P" else [*command]


def first_place(command: Sequence[str]) -> list[str]:
    """Where Python looks for modules first."""
    return [] if command[0] == "-P" else [""] if command[0] == "-c" else [str(Path(command[0]).resolve().parent)]


def execute(command: Sequence[str], main: types.ModuleType) -> None:
    match command:
        case ["-c", code, *_]:
            exec(compile(code, "<string>", "exec"), main.__dict__)
        case ["-P", "-m", module, *_]:
            sys.modules.pop(module, None)
            runpy._run_module_as_main(module)  # type: ignore[attr-defined]
        case [script, *_]:
            main.__file__ = script
            exec(compile(Path(script).read_bytes(), script, "exec"), main.__dict__)


def run(command: Sequence[str]) -> None:
    """As Python runs a script, but that it does not take all modules apart at the end.

    That would be the longest part of a short job's end: each of the zygote's pages is copied for it. Threads are waited
    for, and what was registered for the end is called.
    """
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    try:
        execute(command, main)
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        status = end.code or 0
    else:
        status = 0
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


class Daemons:
    """In the place of `spawn_daemon`: what is not to be forked is started as ever."""

    def __init__(self, cold: Any) -> None:
        self._cold = cold

    def __call__(self, argv: Sequence[str], env: Mapping[str, str], log_path: Path) -> int:
        if not env.get(OWN):
            pid: int = self._cold(argv, env, log_path)
            return pid
        log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        try:
            with ask(env[OWN], [*argv[1:]], dict(env), str(Path.cwd()), [null, log, log], True) as zygote:
                return int(read_number(zygote))
        finally:
            os.close(null)
            os.close(log)


def warm_up(framework: str) -> dict[str, str]:
    """Import it all; what that has put into the environment."""
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")  # pyarrow's, which Keras imports
    before = dict(os.environ)
    for module in MODULES[framework]:
        found = importlib.import_module(module)
        if framework == "edl":
            for inner in pkgutil.iter_modules(found.__path__, f"{module}."):
                if inner.name != "edl.coordination._gate":  # no module of Python's
                    importlib.import_module(inner.name)
    if link := sys.modules.get("edl.trainer.daemon_link"):
        link.spawn_daemon = Daemons(link.spawn_daemon)  # type: ignore[attr-defined]
    gc.collect()
    gc.freeze()  # a collection in a fork must not copy all pages
    return {name: value for name, value in os.environ.items() if before.get(name) != value}


if __name__ == "__main__":
    added = warm_up(sys.argv[1])
    zygote, places = os.getpid(), Places()
    request = Forks(Path(sys.argv[2])).serve()
    become(request, zygote, added, places)
    run(request.command)
