"""The part of `edl prove --hosts` on one host: `python -m edl.proof.host_part ADDRESS`, started over ssh.

It does what lines on its stdin say, and tells on its stdout what happens: processes that start and exit, files that
grow. When stdin ends, as it does with the connection, it kills what it has started and removes its folder. ADDRESS is
of the machine on which `edl prove` runs.

Owns: one host's processes and its folder. Does not own: what they are for (`edl.proof.proof_hosts`).
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from edl import __version__
from edl.coordination.child_server import dying_with, free_port
from edl.errors import EdlError
from edl.host.network import address_towards, interface_of
from edl.launch.job_processes import MARK, end_marked
from edl.proof.proof_report import Machine, machine
from edl.proof.step_figures import set_file

# Each message is a line of JSON.


class StartProcess(msgspec.Struct, frozen=True, tag=True):
    """{folder} and {interface} in words and variables stand for the host's own."""

    command: list[str]
    environ: dict[str, str]


class KillProcess(msgspec.Struct, frozen=True, tag=True):
    """Kill by SIGKILL."""

    pid: int


class PutFile(msgspec.Struct, frozen=True, tag=True):
    """Write a file, which only the user may read, into the host's folder."""

    name: str
    text: str


class AskClock(msgspec.Struct, frozen=True, tag=True):
    """Ask for the host's clock, after all that was asked and seen before."""

    number: int


class HostReady(msgspec.Struct, frozen=True, tag=True):
    edl: str
    machine: Machine
    port: int  # that is free


class ProcessStarted(msgspec.Struct, frozen=True, tag=True):
    pid: int


class ProcessKilled(msgspec.Struct, frozen=True, tag=True):
    pid: int
    at: float  # by the host's clock


class ProcessExited(msgspec.Struct, frozen=True, tag=True):
    pid: int
    code: int
    last_words: str  # of its output, after a failure


class FileGrown(msgspec.Struct, frozen=True, tag=True):
    """A file of the host's folder has more bytes, one for each character of `text`."""

    name: str
    text: str
    first: bool


class ToldClock(msgspec.Struct, frozen=True, tag=True):
    number: int
    clock_s: float
    written: int  # bytes in the host's folder


class PartFailed(msgspec.Struct, frozen=True, tag=True):
    reason: str


ToHost = StartProcess | KillProcess | PutFile | AskClock
FromHost = HostReady | ProcessStarted | ProcessKilled | ProcessExited | FileGrown | ToldClock | PartFailed

_ASKED: msgspec.json.Decoder[ToHost] = msgspec.json.Decoder(ToHost)
_TOLD: msgspec.json.Decoder[FromHost] = msgspec.json.Decoder(FromHost)


def line_of(message: ToHost | FromHost) -> bytes:
    return msgspec.json.encode(message) + b"\n"


def asked_by(line: bytes) -> ToHost:
    return _ASKED.decode(line)


def told_by(line: bytes) -> FromHost:
    return _TOLD.decode(line)


LOOK_S = 0.02
SILENCE_S = 120.0  # of `edl prove`, which asks each few seconds: its host, or the way to it, is gone
TOLD = ("*.jsonl", "done *", "audit/*")  # files whose growth is told
PIECE = 1 << 20  # bytes
LAST_WORDS = 2000  # characters
ANY_PORT = 9  # of an address to which the way is looked up


class HostPart:
    """Run the processes of one host, and tell what they write."""

    def __init__(self, folder: Path, interface: str) -> None:
        self._folder, self._interface = folder, interface
        self._mark = folder.name
        self._running: dict[int, tuple[subprocess.Popen[bytes], Path]] = {}
        self._known: dict[Path, int] = {}  # bytes that were told
        self._logs = 0

    def handle(self, message: ToHost) -> Iterator[FromHost]:
        match message:
            case StartProcess(command, environ):
                yield ProcessStarted(self._start(command, environ))
            case KillProcess(pid):
                at = time.monotonic()
                if pid in self._running:  # else it has exited, which is told
                    self._running[pid][0].kill()
                yield ProcessKilled(pid, at)
            case PutFile(name, text):
                set_file(self._folder / name, text)
            case AskClock(number):
                yield from self.look()
                yield ToldClock(number, time.monotonic(), self._written())

    def _start(self, command: list[str], environ: dict[str, str]) -> int:
        own = {name: value for name, value in os.environ.items() if not name.startswith("EDL_")}
        given = {name: self._here(value) for name, value in environ.items()}
        self._logs += 1
        log = self._folder / f"output.{self._logs}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                dying_with(os.getpid(), [self._here(word) for word in command]),
                env={"GLOO_SOCKET_IFNAME": self._interface, "NCCL_SOCKET_IFNAME": self._interface, **own, **given}
                | {MARK: self._mark, "TMPDIR": str(self._folder)},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self._running[process.pid] = process, log
        return process.pid

    def _here(self, text: str) -> str:
        return text.replace("{folder}", str(self._folder)).replace("{interface}", self._interface)

    def look(self) -> Iterator[FromHost]:
        """Tell what files have grown, and which processes have exited."""
        exited = [pid for pid, (process, _) in self._running.items() if process.poll() is not None]
        for pattern in TOLD:
            for path in self._folder.glob(pattern):
                yield from self._grown(path)
        for pid in exited:
            process, log = self._running.pop(pid)
            words = log.read_text(errors="replace")[-LAST_WORDS:] if process.returncode else ""
            yield ProcessExited(pid, process.returncode, words)

    def _grown(self, path: Path) -> Iterator[FromHost]:
        known = self._known.get(path, 0)
        with path.open("rb") as file:
            file.seek(known)
            while piece := file.read(PIECE):
                yield FileGrown(str(path.relative_to(self._folder)), piece.decode("latin-1"), not known)
                known += len(piece)
        self._known[path] = known

    def _written(self) -> int:
        found = 0
        for path in self._folder.rglob("*"):
            try:
                found += path.stat().st_size if path.is_file() else 0
            except FileNotFoundError:  # a job removes files of its own
                continue
        return found

    def end(self) -> None:
        for process, _ in self._running.values():
            process.kill()
        end_marked(self._mark, 0.0, hurried())
        for process, _ in self._running.values():
            process.wait()


def hurried() -> threading.Event:
    found = threading.Event()
    found.set()
    return found


def serve(part: HostPart) -> None:
    """Do what stdin says until it ends, or has said nothing for long."""
    heard, last = b"", time.monotonic()
    while time.monotonic() - last < SILENCE_S:
        if select.select([sys.stdin.fileno()], [], [], LOOK_S)[0]:
            read = os.read(sys.stdin.fileno(), PIECE)
            if not read:
                return
            last = time.monotonic()
            *lines, heard = (heard + read).split(b"\n")
            for line in lines:
                say(*part.handle(asked_by(line)))
        say(*part.look())


def say(*messages: FromHost) -> None:
    for message in messages:
        sys.stdout.buffer.write(line_of(message))
    if messages:
        sys.stdout.buffer.flush()


def main() -> int:
    os.umask(0o077)  # a job's secret is among the files
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupted `edl prove` closes stdin
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, lambda *_: sys.exit(1))
    try:
        own = address_towards(sys.argv[1], ANY_PORT)
        with tempfile.TemporaryDirectory(prefix="edl-proof-", ignore_cleanup_errors=True) as name:
            part = HostPart(Path(name), interface_of(own))
            try:
                say(HostReady(__version__, machine("cuda"), free_port(own)))
                serve(part)
            finally:
                part.end()
    except EdlError as error:
        say(PartFailed(str(error)))
        return 1
    except BrokenPipeError:  # `edl prove` has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main())
