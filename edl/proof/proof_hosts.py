"""The hosts of `edl prove --hosts`: a part on each of them (`edl.proof.host_part`), over ssh, and what it tells.

Notes of workers, audits and ends of turns are copied here as they grow, so that what reads them needs no shared disk.
A host's clock is read at the beginning: workers there write times of this machine's clock.

Owns: the connections, the copies, and which processes run where. Does not own: what the processes are.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from edl import __version__
from edl.errors import ConfigError, EdlError
from edl.host.network import LOOPBACK, address_towards, interface_of, is_loopback
from edl.launch.host_slots import Host
from edl.proof.host_part import (
    ANY_PORT,
    AskClock,
    FileGrown,
    FromHost,
    HostReady,
    KillProcess,
    PartFailed,
    ProcessExited,
    ProcessKilled,
    ProcessStarted,
    PutFile,
    StartProcess,
    ToHost,
    ToldClock,
    line_of,
    told_by,
)
from edl.proof.proof_report import Machine, ProofHost
from edl.proof.step_figures import set_file

SSH = "ssh -o BatchMode=yes"  # as no terminal is there to ask for a password
READY_S = 60.0
ANSWER_S = 30.0
END_S = 30.0
ASK_S = 5.0  # between questions to a host that keep its part alive
LOOKS_AT_CLOCK = 20
PIDS = 10_000_000  # more than a host has

A = TypeVar("A", bound=FromHost)


class HostLink:
    """A thread of its own takes messages."""

    def __init__(self, number: int, host: Host, ssh: Sequence[str], towards: str, folder: Path) -> None:
        """`number` begins with 1, and `folder` is where the part's files are copied to."""
        self.host, self.number = host, number
        self.machine: Machine | None = None
        self.port = 0
        self.clock_s = 0.0  # to be added to the host's clock
        self.clock_error_s = 0.0  # at most
        self.written = 0
        self._folder = folder
        self._log = folder / f"ssh.{number}.log"
        self._exits: queue.Queue[ProcessExited] = queue.Queue()
        self._answers: queue.Queue[FromHost | None] = queue.Queue()
        self._asked_at, self._questions = 0.0, 0
        path = os.environ.get("PYTHONPATH")
        words = [*(["env", f"PYTHONPATH={path}"] if path else []), sys.executable, "-P", "-m", "edl.proof.host_part"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*ssh, host.name, shlex.join([*words, towards])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # a terminal's Ctrl-C does not reach it
            )
        self._thread = threading.Thread(target=self._hear, name=f"edl-host-{number}", daemon=True)
        self._thread.start()

    def meet(self) -> None:
        """Wait until the part is ready, and compare clocks. Raises ConfigError with what is wrong on the host."""
        try:
            ready = self._answer(HostReady, READY_S)
        except EdlError as error:
            raise ConfigError(f"--hosts {self.host.name}: {error}") from None
        if ready.edl != __version__:
            raise ConfigError(f"--hosts {self.host.name}: has edl {ready.edl}, and this machine {__version__}")
        self.machine, self.port = ready.machine, ready.port
        best = float("inf")
        for _ in range(LOOKS_AT_CLOCK):
            asked = time.monotonic()
            told = self.sync()
            took = time.monotonic() - asked
            if took < best:
                best, self.clock_s = took, asked + took / 2 - told.clock_s
        self.clock_error_s = best / 2

    def start(self, command: Sequence[str], environ: dict[str, str]) -> int:
        """Return the process id."""
        self._send(StartProcess(list(command), environ))
        return self._answer(ProcessStarted).pid

    def kill(self, pid: int) -> float:
        """Return when it was killed, by this machine's clock."""
        self._send(KillProcess(pid))
        return self._answer(ProcessKilled).at + self.clock_s

    def numbered(self, pid: int) -> int:
        """Return the number that a process of this host has among those of all hosts."""
        return self.number * PIDS + pid

    def put(self, name: str, text: str) -> None:
        self._send(PutFile(name, text))

    def sync(self) -> ToldClock:
        """Return the host's clock, once all is copied that the host has seen before."""
        self._questions += 1
        self._asked_at = time.monotonic()
        self._send(AskClock(self._questions))
        told = self._answer(ToldClock)
        self.written = told.written
        return told

    def exits(self) -> Iterator[ProcessExited]:
        """Yield processes that have exited since. Raises EdlError when the host is gone."""
        if time.monotonic() - self._asked_at > ASK_S:
            self.sync()
        while not self._exits.empty():
            yield self._exits.get()

    def close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._thread.join()

    def _send(self, message: ToHost) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line_of(message))
            self._process.stdin.flush()
        except BrokenPipeError:
            raise EdlError(self._gone()) from None

    def _answer(self, kind: type[A], within_s: float = ANSWER_S) -> A:
        try:
            answer = self._answers.get(timeout=within_s)
        except queue.Empty:
            raise EdlError(f"host {self.host.name} has not answered for {within_s:.0f} s") from None
        if isinstance(answer, PartFailed):
            raise EdlError(answer.reason)
        if answer is None:
            raise EdlError(self._gone())
        assert isinstance(answer, kind), (answer, kind)
        return answer

    def _gone(self) -> str:
        self._process.wait()
        lines = self._log.read_text(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
        return (
            f"the connection to host {self.host.name} ended with exit code {self._process.returncode}: {last}; try "
            f"`ssh {self.host.name} {sys.executable} -m edl version`"
        )

    def _hear(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            match told_by(line):
                case ProcessExited() as exited:
                    self._exits.put(exited)
                case FileGrown(name, text, first):
                    self._copy(name, text.encode("latin-1"), first=first)
                case answer:
                    self._answers.put(answer)
        self._answers.put(None)

    def _copy(self, name: str, content: bytes, *, first: bool) -> None:
        """Append to the copy; a new one is there at once with its first bytes."""
        path = self._folder / name
        if path.suffix == ".jsonl" and path.stem.isdecimal():
            path = path.with_name(f"{self.numbered(int(path.stem))}.jsonl")
        if not first:
            with path.open("ab") as file:
                file.write(content)
            return
        path.parent.mkdir(exist_ok=True)
        working = path.with_name(f"{path.name}.new")
        working.write_bytes(content)
        working.rename(path)


class ProofHosts:
    """Hosts of one proof. Use it as a context; leaving it ends all that was started there."""

    def __init__(self, hosts: Sequence[Host], ssh: str, folder: Path) -> None:
        self._hosts, self._ssh, self._folder = hosts, shlex.split(ssh), folder
        self.address = own_address(hosts)
        self.links: list[HostLink] = []

    @property
    def interface(self) -> str:
        return interface_of(self.address)

    def __enter__(self) -> ProofHosts:
        try:
            for number, host in enumerate(self._hosts, start=1):
                self.links.append(HostLink(number, host, self._ssh, self.address, self._folder))
            for link in self.links:
                link.meet()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for link in self.links:
            link.close()

    def put(self, name: str, text: str = "") -> None:
        """Write a file on each host, and here."""
        set_file(self._folder / name, text)
        for link in self.links:
            link.put(name, text)

    def kill(self, worker: int) -> float:
        """Return when it was killed. `worker`: the number of its notes."""
        number, pid = divmod(worker, PIDS)
        return self.links[number - 1].kill(pid)

    def sync(self) -> None:
        """Return once all is copied that the hosts have seen by now."""
        for link in self.links:
            link.sync()

    def told(self) -> list[ProofHost]:
        return [
            ProofHost(link.host.name, link.host.slots, link.machine, round(1000 * link.clock_error_s, 2))
            for link in self.links
            if link.machine is not None
        ]

    @property
    def written(self) -> int:
        return sum(link.written for link in self.links)


def address_name(host: Host) -> str:
    """Return the name by which other hosts reach a host: without the user of ssh."""
    return host.name.rpartition("@")[2]


def own_address(hosts: Sequence[Host]) -> str:
    """Return this machine's address towards the hosts. Raises ConfigError."""
    found = []
    for host in hosts:
        try:
            found.append(address_towards(address_name(host), ANY_PORT))
        except ConfigError:
            raise ConfigError(f"--hosts {host.name}: this name is no host's: write it as for ssh") from None
    return next((address for address in found if not is_loopback(address)), LOOPBACK)
