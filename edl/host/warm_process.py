"""A Python that has imported what a job's workers import, and from which later workers are forked.

It imports nothing of edl by itself: `python [FLAGS] warm_process.py WHAT SOCKET LOG PADDING`, where WHAT is for people
who list processes, and SOCKET and LOG are the numbers of a connection to the launcher and of an open file. Python
begins with pipes as its outputs, as a worker does, so that it makes the streams of a worker; then LOG takes their
places until a fork. The launcher sends the names of installed modules, hears whether this process can be forked, and
then asks for workers, one at a time. Each becomes a child of the launcher, as a new process would be. An agent of a
cluster asks for wardens, which outlive it: a fork runs the warden, and forks the worker.

A second such process, of other modules, forks the workers' daemons. Workers ask it themselves, over a connection that
each has from its fork; a daemon outlives both, and is a child of neither, as a new one would be.

The imports are made by a thread of the lowest priority, which has ended before the first fork: the nice value belongs
to a thread, and an unprivileged process could not raise its own again. A process that has other threads then, or a
device open, cannot be forked, and says so.

Owns: the imports, the forks, and that a fork looks as the new process would. Does not own: whether such a process is
wanted (`edl.launch.warm_starts`), nor what becomes of a worker.
"""

import ctypes
import gc
import importlib
import importlib.machinery
import importlib.util
import json
import os
import re
import runpy
import signal
import socket
import sys
import textwrap
import threading
import time
import types
from typing import Any

PADDING = "EDL_WARM_PADDING"  # room in /proc for the variables of a worker; no import sees it
PR_SET_PDEATHSIG = 1
LOWEST = 19
AUTOGROUP = "/proc/self/autogroup"  # the priority of this session, where the kernel shares cores out among sessions
SET_S = 1.0
IGNORED = (
    signal.SIGINT,
    signal.SIGQUIT,
)  # by what a shell starts in the background (`edl.host.host_processes.spawn_daemon`)
FIRST_TO_KILL = "1000"  # of oom_score_adj
THREADS_END_S = 2.0  # for threads that their library ends before a fork, such as those of OpenBLAS
# The allocator of pyarrow, which pandas imports, and Keras where pandas is there, would have a thread of its own.
WITHOUT_THREAD = ("JE_ARROW_MALLOC_CONF", "background_thread:false")
ADOPTED_S = 5.0
DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri", "/dev/accel", "/dev/dxg", "/dev/nvmap", "/dev/nvhost")
LIBRARY = r"/memfd:edl-.+\.so \(deleted\)"  # a copy that `edl.collectives.library_guard` has made
SHARED = ("socket:", "pipe:", "anon_inode:", "/dev/shm/", "/memfd:")  # noqa: S108 - one and the same in all forks


class NotForkable(Exception):
    """Raised where the imported modules do not survive a fork, or a new process would import others."""


# ------------------------------------------------------------------------------------------------------- the imports


def import_all(names: list[str]) -> str:
    """Return what went wrong. A module that is not there is none of that: a script that needs it says so itself."""
    for name in names:
        if name not in sys.modules:
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                print(f"{name}: {error!r}", file=sys.stderr)
            except BaseException as error:  # noqa: BLE001 - what has begun of its import would be in each fork
                return f"{name} cannot be imported ahead: {error!r}"
    gc.collect()
    gc.freeze()  # a collection in a fork does not copy all pages
    return ""


def import_in_thread(names: list[str], *, eager: bool) -> None:
    """Raise NotForkable where an import failed midway."""
    wrong = []
    before = read(AUTOGROUP).rpartition(" ")[2]

    def work() -> None:
        if not eager:
            give_way()
        wrong.append(import_all(names))

    variable, value = WITHOUT_THREAD
    is_given = variable in os.environ
    os.environ.setdefault(variable, value)
    thread = threading.Thread(target=work, name="edl-imports")
    thread.start()
    thread.join()
    raise_session(before)
    if not is_given:
        del os.environ[variable]
    if wrong != [""]:
        raise NotForkable(wrong[0] if wrong else "the imports have ended their thread")


def give_way() -> None:
    """Lower the priority of this thread, and of this session where the kernel shares cores out among sessions."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST)
    write(AUTOGROUP, str(LOWEST))


def raise_session(nice: str) -> None:
    """Give this session its priority back, as may be done: else each fork would be late on a busy machine."""
    until = time.monotonic() + SET_S
    while read(AUTOGROUP).rpartition(" ")[2] != nice and time.monotonic() < until:
        write(AUTOGROUP, nice)  # refused where any session's was set less than 0.1 s ago
        time.sleep(0.01)


def check_forkable(own: list[str], installed: list[str], before: list[str]) -> None:
    """Raise NotForkable. `own`: modules of the script's. `installed`: folders of what is installed. `before`: what was
    open before the imports.
    """
    places = tuple(os.path.join(folder, "") for folder in installed)
    for name in own:
        module = sys.modules.get(name)
        file = vars(module).get("__file__") if isinstance(module, types.ModuleType) else None
        if name in sys.modules and (file is None or file.startswith(places)):
            raise NotForkable(f"the script has a module {name} of its own, and an installed one is imported here")
    os.waitpid(fork(), 0)  # some libraries end their threads before a fork, and begin them again when they need them
    until = time.monotonic() + THREADS_END_S
    while (threads := len(os.listdir("/proc/self/task"))) > 1:
        if time.monotonic() > until:
            raise NotForkable(f"the imports have started {threads - 1} threads")
        time.sleep(0.01)
    try:
        os.waitpid(-1, os.WNOHANG)
        raise NotForkable("the imports have started a process")
    except ChildProcessError:
        pass
    for target in open_targets():
        is_library = re.fullmatch(LIBRARY, target)  # read only, once it is loaded
        if target.startswith(DEVICES) or (target.startswith(SHARED) and target not in before and not is_library):
            raise NotForkable(f"the imports have opened {target}")


def open_targets() -> list[str]:
    """Return what this process has open, as the kernel names it."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:
            continue
    return found


def fork() -> int:
    """Fork a process that does nothing."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    return pid


# --------------------------------------------------------------------------------------------------------- the forks


class Shown:
    """The memory from which the kernel shows this process in /proc, made wide by padding when the process began."""

    def __init__(self) -> None:
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        self._arguments, self._arguments_end, self._environ, self._environ_end = map(int, fields[45:49])

    def show(self, command: list[str], environ: dict[str, str]) -> None:
        """Raise NotForkable where there is no room. C's own pointers into the old environment must be gone by now."""
        _overwrite(self._arguments, self._arguments_end, command)
        _overwrite(self._environ, self._environ_end, [f"{name}={value}" for name, value in environ.items()])


def _overwrite(begin: int, end: int, words: list[str]) -> None:
    text = b"".join(os.fsencode(word) + b"\0" for word in words)
    if len(text) >= end - begin:
        raise NotForkable("there is no room for its command and variables")
    ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)


class WarmProcess:
    """Serve one launcher."""

    def __init__(self, launcher: socket.socket) -> None:
        self._launcher = launcher
        self._pid = os.getppid()
        self._shown = Shown()
        self._path = sys.path[0 if sys.flags.safe_path else 1 :]
        self._oom = read("/proc/self/oom_score_adj")
        given = read("/proc/self/environ").split("\0")
        own = {name: value for name, value in os.environ.items() if f"{name}={value}" not in given}
        self._added = own  # variables that Python has set, such as LC_CTYPE, and then those that the imports have
        self._daemons: int | None = None  # connection by which workers ask for their daemons

    def serve(self) -> dict[str, Any] | None:
        """Return in a worker, with what it was asked to be; None once the launcher is gone."""
        os.environ.pop(PADDING, None)
        sys.path[:] = self._path
        write("/proc/self/oom_score_adj", FIRST_TO_KILL)
        while (heard := self._hear()) is not None:
            kind, told, descriptors = heard
            if kind == b"i":
                for self._daemons in descriptors:
                    os.set_inheritable(self._daemons, False)
                self._import(told)
            elif worker := self._fork(told, descriptors):
                return worker
        return None

    def _hear(self) -> tuple[bytes, dict[str, Any], list[int]] | None:
        kind, descriptors, _, _ = socket.recv_fds(self._launcher, 1, 4)
        if not kind:
            return None
        with os.fdopen(descriptors[0], encoding="utf-8", errors="surrogateescape") as file:
            file.seek(0)
            return kind, json.load(file), descriptors[1:]

    def _import(self, told: dict[str, Any]) -> None:
        before, files = dict(os.environ), open_targets()
        began = time.monotonic()
        try:
            import_in_thread(told["modules"], eager=told["eager"])
            check_forkable(told["own"], told["installed"], files)
            said: dict[str, Any] = {"modules": len(sys.modules), "seconds": round(time.monotonic() - began, 3)}
        except NotForkable as refused:
            said = {"refused": str(refused)}
        self._added |= {name: value for name, value in os.environ.items() if before.get(name) != value}
        self._launcher.sendall(json.dumps(said).encode() + b"\n")

    def _fork(self, told: dict[str, Any], descriptors: list[int]) -> dict[str, Any] | None:
        """Fork by way of a process that ends at once: the kernel gives its child to the launcher, or to init."""
        between = os.fork()
        if between == 0:
            if "daemon" in told:
                os.setsid()  # which a daemon does not lead: it cannot come to have a terminal
            if os.fork() != 0:
                os._exit(0)
            self._become(told, descriptors)
            return told
        for descriptor in descriptors:
            os.close(descriptor)
        os.waitpid(between, 0)
        return None

    def _become(self, told: dict[str, Any], descriptors: list[int]) -> None:
        """Become all that a new process would be. Tell the launcher once nothing can go wrong any more."""
        try:
            self._launcher.close()
            *streams, answer = descriptors
            if "warden" in told or "daemon" in told:
                for number in IGNORED:
                    signal.signal(number, signal.SIG_IGN)
            else:
                self._wait_adopted()
                die_with(self._pid)
            write("/proc/self/oom_score_adj", self._oom)
            self._take_over(told, streams)
            with socket.socket(fileno=answer) as launcher:
                launcher.sendall(b"%d\n" % os.getpid())
                if not launcher.recv(1):
                    os._exit(1)  # the launcher waits no more, and has started another process
        except BaseException as error:  # noqa: BLE001 - the launcher starts a new process then
            print(f"no worker can be forked: {error!r}", file=sys.stderr, flush=True)
            os._exit(1)

    def _wait_adopted(self) -> None:
        until = time.monotonic() + ADOPTED_S
        while os.getppid() != self._pid:
            if time.monotonic() > until:
                raise NotForkable("it was not given to the launcher")
            time.sleep(0.0005)

    def _take_over(self, told: dict[str, Any], streams: list[int]) -> None:
        """Raises NotForkable, OSError."""
        if "daemon" not in told:
            os.setsid()
        become_outputs(streams)
        os.environ.clear()
        os.environ.update(self._added | told["environ"])
        os.chdir(told["folder"])
        self._shown.show(told["shown"], told["environ"])
        draw_anew(told["folder"])
        if self._daemons is not None and (process := sys.modules.get("edl.host.daemon_process")):
            process.forker = process.Forker(self._daemons)  # type: ignore[attr-defined]

    def attend(self, told: dict[str, Any]) -> dict[str, Any]:
        """Fork a worker and be its warden to its end. Return in the worker, with what it is."""
        warden = loaded(told["warden"])
        before = open_files()
        worker: dict[str, Any] = {}

        def begin(start: dict[str, Any]) -> Any:
            worker.update(told, shown=start["command"], environ=start["environ"], folder=start["folder"])
            forked = self._fork_worker(worker, before, warden.unblock)
            return warden.start_anew(start) if forked is not None and not forked.pid else forked

        pid = os.getpid()
        folder, log = told["shown"][-2:]
        warden.attend(folder, log, begin)
        if os.getpid() == pid:
            os._exit(0)
        return worker

    def _fork_worker(self, told: dict[str, Any], before: set[int], unblock: Any) -> "Forked | None":
        """Fork the worker; return None in it. Its pid is 0 where it could not become what a new process would be."""
        warden = os.getpid()
        (output, its_output), (ready, its_ready) = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                die_with(warden)
                for number in open_files() - before - {its_output, its_ready}:
                    os.close(number)
                self._take_over(told, [its_output, its_output])
                unblock()
                os.write(its_ready, b"!")
                os.close(its_ready)
            except BaseException as error:  # noqa: BLE001 - the warden starts a new process then
                print(f"no worker can be forked: {error!r}", file=sys.stderr, flush=True)
                os._exit(1)
            return None
        os.close(its_output)
        os.close(its_ready)
        with os.fdopen(ready, "rb", 0) as file:
            if file.read(1):
                return Forked(pid, output)
        os.waitpid(pid, 0)
        os.close(output)
        return Forked(0, -1)


class Forked:
    """A child of this process, as far as a warden knows it a `subprocess.Popen`."""

    def __init__(self, pid: int, output: int) -> None:
        self.pid = pid
        self.stdout = os.fdopen(output, "rb", 0) if pid else None

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def loaded(path: str) -> Any:
    """Load the file as a module that is not put in `sys.modules`."""
    spec = importlib.util.spec_from_file_location("warden", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def open_files() -> set[int]:
    found = {int(number) for number in os.listdir("/proc/self/fd")}
    return {number for number in found if _is_open(number)}  # but the one by which they were listed


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def become_outputs(streams: list[int]) -> None:
    """Make two descriptors, or twice the same, the standard outputs."""
    for number, stream in enumerate(streams, start=1):
        os.dup2(stream, number)
    for stream in set(streams):
        os.close(stream)


def die_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def draw_anew(folder: str) -> None:
    """Draw anew what forks would have in common; Python's `random` draws anew by itself."""
    if numpy := sys.modules.get("numpy.random"):
        numpy.seed()
    if process := sys.modules.get("multiprocessing.process"):
        process.current_process().authkey = os.urandom(32)
        process.ORIGINAL_DIR = folder  # type: ignore[attr-defined]


def read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read().strip()
    except OSError:
        return ""


def write(path: str, text: str) -> None:
    """Write the file, if the kernel has it and lets this process write it."""
    try:
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
    except OSError:
        pass


# -------------------------------------------------------------------------------------------------------- the script


def run(told: dict[str, Any]) -> None:
    """Run the script as Python runs what its command line names."""
    kind, name, arguments = told["kind"], told["name"], told["arguments"]
    path = os.path.join(os.getcwd(), name)
    sys.orig_argv = told["shown"]
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=sys.modules["builtins"])
    if sys.version_info < (3, 14):
        main.__dict__.update(__annotations__={})
    sys.modules["__main__"] = main
    if "daemon" in told:
        sys.modules.pop(name, None)  # it runs as the main module
    if kind == "module":
        sys.argv = ["-m", *arguments]
        first = os.getcwd()
    elif kind == "code":
        sys.argv = ["-c", *arguments]
        first = ""
        main.__loader__ = importlib.machinery.BuiltinImporter
    else:
        sys.argv = [name, *arguments]
        first = os.path.dirname(os.path.realpath(name))
        main.__dict__.update(__file__=path, __cached__=None)
        main.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    if not sys.flags.safe_path:
        sys.path.insert(0, first)
    try:
        if kind == "module":
            runpy._run_module_as_main(name)  # type: ignore[attr-defined]
        elif kind == "code":
            text = textwrap.dedent(name) if sys.version_info >= (3, 14) else name
            exec(compile(text, "<string>", "exec", dont_inherit=True), main.__dict__)
        else:
            with open(name, "rb") as file:
                code = compile(file.read(), path, "exec", dont_inherit=True)
            exec(code, main.__dict__)
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 - shown as Python shows it, without the frames of this file
        show(error)


def show(error: BaseException) -> None:
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    error.__traceback__ = trace
    if isinstance(error, KeyboardInterrupt):  # Python ends by the signal then, when all else has ended
        sys.excepthook(type(error), error, trace)
        sys.excepthook = lambda *_: None
        raise error
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    sys.excepthook(type(error), error, trace)
    sys.exit(1)


if __name__ == "__main__":
    become_outputs([int(sys.argv[3])] * 2)
    process = WarmProcess(socket.socket(fileno=int(sys.argv[2])))
    asked = process.serve()
    if asked is not None and "warden" in asked:
        asked = process.attend(asked)
    if asked is not None:
        run(asked)
