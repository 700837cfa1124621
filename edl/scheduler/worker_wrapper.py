"""Warden of one worker: starts it, keeps what it prints within bounds, and writes down how it ended.

It outlives the agent that started it, so that an agent that comes back knows how its workers ended. It imports nothing
of edl, and little else: `python -I -S worker_wrapper.py FOLDER LOG`. A fork of a warm process may run it, too, and fork
the worker (`edl.host.warm_process`). FOLDER/start.json says what to start; it holds the worker's environment, and is
removed at once: the process that removes it first decides whether the worker ever starts. FOLDER/exit.json says how it
ended. SIGURG, which others ignore, asks the worker to leave; SIGTERM does, too, and is written down: who sent it may be
a system that takes the machine away.

Whatever the worker starts stays below this process, also what loses its parent or clears its environment: this process
is the parent of all orphans below it (a subreaper). FOLDER/processes says by which numbers the two are known.
"""

import ctypes
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import IO, Any, NamedTuple, Protocol

MARK = "EDL_LAUNCH"  # as in edl.launch.job_processes
HEARD = {signal.SIGTERM, signal.SIGURG}
LOG_BYTES = 4 << 20  # of one file of two: the newest output, and what came before it
TAIL_BYTES = 8192
LAST_WORD_BYTES = 16384
LINGER_S = 1.0  # for output of a worker that has ended: what it has started may hold the pipe
POLL_S = 0.1
LISTINGS = 20  # at most, on a machine that starts processes all the time
EXEC_S, EXEC_POLL_S = 1.0, 0.001  # for a process that changes its program
KERNEL_THREAD = 0x200000  # PF_KTHREAD
PR_SET_CHILD_SUBREAPER = 36


class Log:
    """Keep two files at most."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._file).st_size
        self.tail = b""

    def write(self, piece: bytes) -> None:
        self.tail = (self.tail + piece)[-TAIL_BYTES:]
        try:
            os.write(self._file, piece)
            self._size += len(piece)
            if self._size >= LOG_BYTES:
                os.close(self._file)
                os.rename(self._path, self._path + ".1")
                self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
                self._size = 0
        except OSError:  # a full disk: the worker goes on without this output
            self._size += len(piece)


def killed_for_memory() -> int:
    """Count how often the machine has killed any process for want of memory."""
    try:
        with open("/proc/vmstat", "rb") as file:
            return next(int(line.split()[1]) for line in file if line.startswith(b"oom_kill "))
    except (OSError, StopIteration):
        return 0


class LastWord:
    """Record of how the worker ended. Its room is reserved from the beginning: the disk may be full by then."""

    def __init__(self, folder: str) -> None:
        """Raises OSError."""
        self._folder, self._draft = folder, os.path.join(folder, ".exit.json")
        self._file = os.open(self._draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._write(b" " * LAST_WORD_BYTES)

    def say(self, code: int, tail: str, **found: object) -> None:
        """Write the record with as much of the tail as there is room for."""
        while len(text := json.dumps({"code": code, "tail": tail, **found}).encode()) > LAST_WORD_BYTES and tail:
            tail = tail[(len(tail) + 1) // 2 :]
        try:
            self._write(text.ljust(LAST_WORD_BYTES))
            os.rename(self._draft, os.path.join(self._folder, "exit.json"))
        except OSError:  # a file system that has no room for what takes another's place, or none for the new name
            os.rename(self._draft, os.path.join(self._folder, f"exit-{code}"))

    def _write(self, text: bytes) -> None:
        os.lseek(self._file, 0, os.SEEK_SET)
        while text:
            text = text[os.write(self._file, text) :]
        os.fsync(self._file)


def copy(pipe: int, log: Log, until: float) -> None:
    """Copy the pipe to the log, until the pipe ends or the time is up."""
    while (left := until - time.monotonic()) > 0 and select.select([pipe], [], [], left)[0]:
        piece = os.read(pipe, 65536)
        if not piece:
            return
        log.write(piece)


def unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)


def hand_on(pid: int) -> None:
    """Hand SIGTERM on to a child that was not waited for yet: its number is its own."""
    try:
        os.killpg(pid, signal.SIGTERM)
    except ProcessLookupError:  # its group is gone
        pass


class Asked:
    """Requests that reached this process as signals."""

    def __init__(self, pid: int, *, all_hear: bool) -> None:
        """`all_hear`: who sends SIGTERM sends it to the worker as well, to whom a second one means to die at once."""
        self._pid, self._all_hear = pid, all_hear
        self.terminated = False
        signal.signal(signal.SIGTERM, self._terminate)
        signal.signal(signal.SIGURG, lambda *_: hand_on(pid))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)

    def _terminate(self, *_: object) -> None:
        self.terminated = True
        if not self._all_hear:
            hand_on(self._pid)


class ListedProcess(NamedTuple):
    ended: bool  # and was not waited for yet
    parent: int
    session: int
    started: int  # in clock ticks since boot


def status(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name, which may hold spaces and parentheses. Raises OSError."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()


def listed() -> dict[int, ListedProcess]:
    found = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                fields = status(int(name))
            except OSError:  # it is gone
                continue
            found[int(name)] = ListedProcess(fields[0] in "ZX", int(fields[1]), int(fields[3]), int(fields[19]))
    return found


def below(top: int, here: dict[int, ListedProcess]) -> set[int]:
    """List a process's children, their children and so on; also those that have ended."""
    children: dict[int, list[int]] = {}
    for pid, seen in here.items():
        children.setdefault(seen.parent, []).append(pid)
    found: set[int] = set()
    todo = [top]
    while todo:
        new = children.get(todo.pop(), [])
        found.update(new)
        todo += new
    return found


def environ(pid: int) -> bytes:
    """Wait while the process changes its program, as edl.launch.job_processes does: the kernel shows an empty
    environment then. Return b"" where it has no program, or changes it for too long. Raises OSError.
    """
    until = time.monotonic() + EXEC_S
    while True:
        with open(f"/proc/{pid}/environ", "rb") as file:
            if found := file.read():
                return found
        fields = status(pid)
        no_program = fields[0] in "ZX" or int(fields[6]) & KERNEL_THREAD
        loaded = fields[23] != "0"  # where its code begins: set last while a program is loaded
        if no_program or (loaded and fields[47] == fields[48]) or time.monotonic() > until:
            return b""
        time.sleep(EXEC_POLL_S)


def others(mark: str) -> list[int]:
    """List processes of this worker, but not this one: all below this one, and whatever has the mark of this launch.
    Listed again while some are new: they may fork.
    """
    wanted, looked_at = f"{MARK}={mark}".encode(), {os.getpid()}
    found: list[int] = []
    for _ in range(LISTINGS):
        new = {int(name) for name in os.listdir("/proc") if name.isdecimal()} - looked_at
        for pid in new:
            try:
                if wanted in environ(pid).split(b"\0"):
                    found.append(pid)
            except OSError:  # it is gone, or another user's
                pass
        if found or not new:
            break
        looked_at |= new
    here = listed()
    return sorted({*found, *(pid for pid in below(os.getpid(), here) if not here[pid].ended)})


def adopt_orphans() -> None:
    """Adopt processes that those below this one leave behind; see prctl(2)."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def hold_life(folder: str) -> None:
    """Hold a lock that the kernel frees with this process: another machine that has the folder tells by it that the
    process lives.
    """
    file = os.open(os.path.join(folder, "life"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # a file system without locks
        pass


def bury(worker: int) -> None:
    """Reap adopted processes that have ended; `worker` is waited for elsewhere."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None or ended.si_pid == worker:
                return
            os.waitpid(ended.si_pid, os.WNOHANG)
        except ChildProcessError:
            return


def say_who(folder: str, worker: int) -> None:
    """Write down the pids of warden and worker. Where this process is killed, the worker's session still tells which
    processes are the worker's.
    """
    try:
        here, pids = listed(), os.stat("/proc/self/ns/pid")
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as boot:
            space = f"{boot.read().strip()}:{pids.st_dev}:{pids.st_ino}"  # as edl.host.host_processes.pid_space has it
        text = " ".join([space, *(f"{pid} {here[pid].started}" for pid in (os.getpid(), worker))])
        file = os.open(os.path.join(folder, "processes"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.write(file, text.encode())
        os.close(file)
    except (OSError, KeyError):  # a full disk, or it has ended: they are known by their mark
        pass


def wait_alone(mark: str, linger_s: float) -> None:
    """Wait until nothing that the worker has started is left; kill what lingers."""
    until = time.monotonic() + linger_s
    while found := others(mark):
        if time.monotonic() > until:
            for pid in found:
                try:
                    os.kill(pid, signal.SIGKILL)
                except (ProcessLookupError, PermissionError):  # another user's is waited for, as it holds the device
                    pass
        time.sleep(POLL_S)


def environ_of(told: dict[str, Any]) -> dict[str, str]:
    """Return the worker's variables, with those that only this machine knows, such as the devices given to it."""
    here = {name: os.environ[name] for name in told.get("taken_here", ()) if name in os.environ}
    return {**told["environ"], **here}


class WorkerChild(Protocol):
    """A `subprocess.Popen`, or a forked process."""

    @property
    def pid(self) -> int: ...

    @property
    def stdout(self) -> IO[bytes] | None: ...

    def wait(self) -> int: ...


def start_anew(told: dict[str, Any]) -> WorkerChild:
    """Raises OSError."""
    return subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", "--", *told["command"]],
        cwd=told["folder"],
        env=environ_of(told),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=unblock,
    )


def attend(folder: str, path: str, begin: Callable[[dict[str, Any]], WorkerChild | None]) -> None:
    """Return when the worker has ended. `begin` begins it, and returns None in the worker itself where it is forked:
    then this returns there at once.
    """
    start = os.path.join(folder, "start.json")
    with open(start, encoding="utf-8") as file:
        told = json.load(file)
    signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)  # until there is a worker to hand it to
    os.unlink(start)
    adopt_orphans()
    hold_life(folder)
    log, last, before = Log(path), LastWord(folder), killed_for_memory()
    try:
        worker = begin(told)
    except OSError as error:
        last.say(127, "", refused=str(error), at=time.time())
        return
    if worker is None:
        return
    assert worker.stdout is not None
    signal.signal(signal.SIGCHLD, lambda *_: bury(worker.pid))
    say_who(folder, worker.pid)
    handle, pipe = os.pidfd_open(worker.pid), worker.stdout.fileno()
    asked = Asked(worker.pid, all_hear=bool(told.get("all_hear")))
    open_ = True
    while not select.select([handle], [], [], 0)[0]:
        if pipe in select.select([handle, pipe] if open_ else [handle], [], [])[0]:
            piece = os.read(pipe, 65536)
            open_ = bool(piece)
            log.write(piece)
    code = worker.wait()
    bury(0)
    if open_:
        copy(pipe, log, time.monotonic() + LINGER_S)
    last.say(
        code,
        log.tail.decode(errors="replace"),
        starved=code in {-9, 137} and killed_for_memory() > before,
        terminated=asked.terminated,
        at=time.time(),
    )
    if told.get("wait_alone"):
        wait_alone(told["environ"][MARK], told["wait_alone"])


if __name__ == "__main__":
    attend(sys.argv[1], sys.argv[2], start_anew)
