"""Beside one worker: starts it, keeps what it prints within bounds, and writes down how it ended.

It outlives the agent that started it, so that an agent that comes back knows how its workers ended. It imports nothing
of edl, and little else: `python -I -S warden.py FOLDER LOG`. FOLDER/start.json says what to start; it holds the
worker's environment, and is removed at once. FOLDER/exit.json says how it ended. SIGTERM goes on to the worker.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time

LOG_BYTES = 4 << 20  # of one file of two: the newest output, and what came before it
TAIL_BYTES = 8192
LINGER_S = 1.0  # for output of a worker that has ended: what it has started may hold the pipe


class Log:
    """Two files at most."""

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
    """How often the machine has killed any process for want of memory."""
    try:
        with open("/proc/vmstat", "rb") as file:
            return next(int(line.split()[1]) for line in file if line.startswith(b"oom_kill "))
    except (OSError, StopIteration):
        return 0


def write_down(folder: str, found: dict[str, object]) -> None:
    working = os.path.join(folder, ".exit.json")
    descriptor = os.open(working, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        json.dump(found, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(working, os.path.join(folder, "exit.json"))


def copy(pipe: int, log: Log, until: float) -> None:
    """What comes, until the pipe ends or the time is up."""
    while (left := until - time.monotonic()) > 0 and select.select([pipe], [], [], left)[0]:
        piece = os.read(pipe, 65536)
        if not piece:
            return
        log.write(piece)


def unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def hand_on(pid: int) -> None:
    """It is a child that was not waited for yet: the number is its own."""
    try:
        os.killpg(pid, signal.SIGTERM)
    except ProcessLookupError:  # its group is gone
        pass


def main() -> None:
    folder, path = sys.argv[1:3]
    start = os.path.join(folder, "start.json")
    with open(start, encoding="utf-8") as file:
        told = json.load(file)
    os.unlink(start)
    log, before = Log(path), killed_for_memory()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # until there is a worker to hand it to
    try:
        worker = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", *told["command"]],
            cwd=told["folder"],
            env=told["environ"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=unblock,
        )
    except OSError as error:
        write_down(folder, {"code": 127, "refused": str(error), "at": time.time()})
        return
    assert worker.stdout is not None
    handle, pipe = os.pidfd_open(worker.pid), worker.stdout.fileno()
    signal.signal(signal.SIGTERM, lambda *_: hand_on(worker.pid))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    open_ = True
    while not select.select([handle], [], [], 0)[0]:
        if pipe in select.select([handle, pipe] if open_ else [handle], [], [])[0]:
            piece = os.read(pipe, 65536)
            open_ = bool(piece)
            log.write(piece)
    code = worker.wait()
    if open_:
        copy(pipe, log, time.monotonic() + LINGER_S)
    found = {
        "code": code,
        "tail": log.tail.decode(errors="replace"),
        "starved": code in {-9, 137} and killed_for_memory() > before,
        "at": time.time(),
    }
    write_down(folder, found)


if __name__ == "__main__":
    main()
