"""Facts about processes, such as when one ends, and how to start a process that outlives this one.

Owns: the Linux calls (pidfd, prctl, /proc), and a lock in shared memory that a process holds until it dies. Does not
own: which process ought to live (`edl.trainer`, `edl.launch`).

A pid alone may be another process's by now; where that matters, `process_start_time` tells the two apart.

The pidfd and the connections of a killed process report its death only once its memory is given back: 15 to 50 ms later
for a trainer with PyTorch, seconds for one with many gigabytes. The kernel releases a robust mutex
(pthread_mutexattr_setrobust) before that, as its very first act. Where there is no robust mutex, the pidfd reports the
death, later.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import fcntl
import hashlib
import logging
import mmap
import os
import resource
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from edl.errors import ConfigError

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
_START_TIME_FIELD = 22 - 3  # of /proc/<pid>/stat, counted after the name
_USER_TIME_FIELD = 14 - 3
_FLAGS_FIELD = 9 - 3
_EXITING = 0x4  # PF_EXITING of the kernel
_KERNEL_THREAD = 0x200000  # PF_KTHREAD
_CODE_FIELD = 26 - 3  # where the process's code begins; the kernel sets it last while it loads a program
_ENVIRON_FIELDS = 50 - 3, 51 - 3  # where the process's environment begins and ends
_HALTED = {
    "T": "its process is stopped (SIGSTOP)",
    "t": "a debugger has stopped its process",
    "D": "its process waits in the kernel, as for a file system that does not answer",
}  # by its state

# The child outlives the shell, is adopted by init or the nearest subreaper, and is no zombie of ours when it ends.
_DETACH = '"$@" </dev/null 1>&2 & echo $!'


def process_start_time(pid: int) -> int | None:
    """Return when the process began, in clock ticks since boot; None if there is no such process (a zombie still
    counts).
    """
    try:
        return int(_stat(pid)[_START_TIME_FIELD])
    except (FileNotFoundError, ProcessLookupError):
        return None


def is_ending(pid: int) -> bool:
    """Tell whether a process is gone or about to go; its memory and connections may still exist for a while."""
    try:
        fields, status = _stat(pid), Path(f"/proc/{pid}/status").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return True
    pending = (line.split()[1] for line in status.splitlines() if line.startswith(("SigPnd:", "ShdPnd:")))
    killed = any(int(signals, 16) >> (signal.SIGKILL - 1) & 1 for signals in pending)
    return killed or fields[0] in "ZX" or bool(int(fields[_FLAGS_FIELD]) & _EXITING)


def may_change_program(pid: int) -> bool:
    """Tell whether a process, whose environment reads as empty, may be in the middle of exec(2)."""
    fields = _stat(pid)
    begin, end = (int(fields[number]) for number in _ENVIRON_FIELDS)
    kernels = bool(int(fields[_FLAGS_FIELD]) & _KERNEL_THREAD)
    return fields[0] not in "ZX" and not kernels and (int(fields[_CODE_FIELD]) == 0 or begin != end)


def used_by(pid: int) -> tuple[float, int]:
    """Return a process's seconds of CPU and bytes of memory, without its children; zeros once the process is gone."""
    try:
        fields = _stat(pid)
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0.0, 0
    ticks = int(fields[_USER_TIME_FIELD]) + int(fields[_USER_TIME_FIELD + 1])
    return ticks / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE")


def halted(pid: int) -> str:
    """Say for people what holds a process up; "" if it runs freely or is gone."""
    try:
        state = _stat(pid)[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return _HALTED.get(state, "")


def yield_to_trainers() -> None:
    """Keep this process, and threads that it starts later, from preempting the trainer on their core: a wakeup waits
    some milliseconds, until the trainer pauses or its time slice ends. The process's share of the core stays as before.
    """
    with contextlib.suppress(OSError):  # a container may not allow it: then as all processes do
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _stat(pid: int) -> list[str]:
    line = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    return line[line.rindex(")") + 2 :].split()  # the name before ")" may hold spaces and parentheses


def raise_open_files() -> int:
    """Raise the limit of open files of this process and its children to the allowed maximum; return the limit.

    Some systems begin with 1024 or fewer for the sake of programs that use select(2), which sees no higher numbers.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # the kernel may allow fewer: the limit then stays as it was
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class ExitWatch:
    """A watch on the end of one process on the running event loop; see `watch_exit`."""

    def __init__(self, pid: int, on_exit: Callable[[int], None]) -> None:
        self._pid = pid
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()
        self._pidfd: int | None = None
        self._cancelled = False

    def begin(self, started: int | None) -> None:
        try:
            self._pidfd = os.pidfd_open(self._pid)
        except ProcessLookupError:
            self._loop.call_soon(self._ended)
            return
        if started is not None and process_start_time(self._pid) != started:  # asked after the pidfd was opened
            self._loop.call_soon(self._ended)
            return
        self._loop.add_reader(self._pidfd, self._ended)

    def cancel(self) -> None:
        """Stop the watch without a call. It may be called twice, and after the exit."""
        self._cancelled = True
        if self._pidfd is not None:
            pidfd, self._pidfd = self._pidfd, None
            self._loop.remove_reader(pidfd)
            os.close(pidfd)

    def _ended(self) -> None:
        if not self._cancelled:
            self.cancel()
            self._on_exit(self._pid)


def watch_exit(pid: int, on_exit: Callable[[int], None], *, started: int | None = None) -> ExitWatch:
    """Call `on_exit(pid)` once on the running loop when the process has ended, soon if it already has.

    The process need not be a child. With `started`, another process under the same pid counts as the end of the first.
    """
    watch = ExitWatch(pid, on_exit)
    watch.begin(started)
    return watch


async def wait_exit(pid: int) -> None:
    """The process need not be a child."""
    ended = asyncio.Event()
    watch = watch_exit(pid, lambda _: ended.set())
    try:
        await ended.wait()
    finally:
        watch.cancel()


def holding_mark(meeting: Path) -> Path:
    """Return the file that a daemon keeps locked as long as it holds the processes that have met by `meeting`: what has
    started them does not kill them then (`edl.scheduler.limb_starter` has the same name and test).
    """
    return meeting.with_name(meeting.name + ".held")


def is_locked(mark: Path) -> bool:
    """Tell whether a process that lives keeps the file locked."""
    try:
        with mark.open("rb") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def die_with_parent(parent: int, number: int = signal.SIGTERM) -> None:
    """Ask the kernel to send this process the signal when its parent ends, or send it at once if `parent` is gone by
    now.

    The trap: the kernel means the *thread* that started this process, not the parent as a whole. A parent must start a
    process that calls this from its main thread, or from a thread that lives as long as the process itself. The setting
    survives exec, but is not inherited by children.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # the parent ended before the prctl call
        os.kill(os.getpid(), number)


@contextlib.contextmanager
def adopting_orphans() -> Iterator[None]:
    """Adopt the processes below this one that lose their parent inside the context."""
    libc, before = ctypes.CDLL(None), ctypes.c_int()
    libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


def spawn_daemon(argv: Sequence[str], env: Mapping[str, str], log_path: str | os.PathLike[str]) -> int:
    """Start a program that outlives this process and its terminal; return its pid.

    The program has a session of its own, no open files of ours, no input, and both outputs appended to the log. It
    starts through a shell that ends at once: a direct child would stay a zombie of a trainer that never waits for it,
    and a fork of a process full of framework threads is not safe. Raises ConfigError.
    """
    if shutil.which(argv[0], path=env.get("PATH")) is None:
        raise ConfigError(f"{argv[0]} is not a program that can be started")
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        shell = subprocess.run(
            ["/bin/sh", "-c", _DETACH, "sh", *argv],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            check=True,
        )
    finally:
        os.close(log)
    return int(shell.stdout)


BOOT = Path("/proc/sys/kernel/random/boot_id")


def pid_space() -> str | None:
    """Return an id that is equal for processes of one boot and one pid namespace, in which a pid means the same process
    for both. Return None where the system does not say so.
    """
    try:
        pids = Path("/proc/self/ns/pid").stat()
        return f"{BOOT.read_text().strip()}:{pids.st_dev}:{pids.st_ino}"
    except OSError:
        return None


def host_id(address: str) -> str | None:
    """Return an id that is equal for processes to which a pid means the same process; None where the system does not
    say so.

    `address` is the one by which this host is reached: machines that were restored from one image may have all else in
    common.
    """
    space = pid_space()
    return None if space is None else hashlib.sha256(f"{space} {address}".encode()).hexdigest()[:16]


logger = logging.getLogger("edl")

LIFE = "life"  # file of the trainer's lock, in the folder that it shares with its daemon
LOCK_BYTES = 64  # of a pthread_mutex_t, at most
SHARED, ROBUST = 1, 1  # PTHREAD_PROCESS_SHARED, PTHREAD_MUTEX_ROBUST
LOOKS, LOOK_S = 20, 0.001  # the kernel ends a process thread by thread


def hold_for_life(path: Path) -> None:
    """Hold the lock from now on, in a thread that does nothing else. Call it once per process."""
    lock = _mapped(path, create=True)
    held = threading.Event()
    threading.Thread(target=_hold, args=(lock, held), name="edl-alive", daemon=True).start()
    held.wait()


def watch_life(path: Path, pid: int, on_death: Callable[[int], None]) -> None:
    """Call `on_death(pid)` on the running loop once the process that holds the lock dies, if the
    system reports that.
    """
    loop = asyncio.get_running_loop()
    arguments = (path, pid, lambda: loop.call_soon_threadsafe(on_death, pid))
    threading.Thread(target=_watch, args=arguments, name="edl-watching", daemon=True).start()


def _hold(lock: Any, held: threading.Event) -> None:
    try:
        libc, attributes = ctypes.CDLL(None), ctypes.create_string_buffer(LOCK_BYTES)
        with contextlib.suppress(AttributeError):  # a C library without robust mutexes: nothing holds the lock
            libc.pthread_mutexattr_init(attributes)
            libc.pthread_mutexattr_setpshared(attributes, SHARED)
            libc.pthread_mutexattr_setrobust(attributes, ROBUST)
            libc.pthread_mutex_init(lock, attributes)
            libc.pthread_mutex_lock(lock)
    finally:
        held.set()
    threading.Event().wait()


def _watch(path: Path, pid: int, tell: Callable[[], object]) -> None:
    try:
        lock = _mapped(path, create=False)
    except (OSError, ValueError) as error:  # the file was removed together with its process's folder
        logger.debug("no early word of the trainer's death: %s", error)
        return
    if ctypes.CDLL(None).pthread_mutex_lock(lock) == errno.EOWNERDEAD and _ends(pid):
        with contextlib.suppress(RuntimeError):  # the loop is over, and the daemon with it
            tell()


def _ends(pid: int) -> bool:
    """Tell whether the process ends, now that the thread that held the lock is gone: the process goes on if another of
    its threads has called exec().
    """
    for _ in range(LOOKS):
        if is_ending(pid):
            return True
        time.sleep(LOOK_S)
    return False


def _mapped(path: Path, *, create: bool) -> Any:
    """Map the lock in the file at `path`. Raises OSError, ValueError."""
    descriptor = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o600)
    try:
        if create:
            os.ftruncate(descriptor, LOCK_BYTES)
        memory = mmap.mmap(descriptor, LOCK_BYTES)
    finally:
        os.close(descriptor)
    return (ctypes.c_char * LOCK_BYTES).from_buffer(memory)
