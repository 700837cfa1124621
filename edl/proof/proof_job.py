"""The job of `edl prove`, on this machine or on several hosts: grown, shrunk, hit by `kill -9`, and ended.

Owns: how its workers are started and killed in each case. Does not own: when, nor what follows from their notes
(`edl.proof.proof_run`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from edl.errors import EdlError
from edl.launch.function_run import INTERRUPTED_WITH_PARENT
from edl.launch.job_records import Folder
from edl.proof.measured_job import MeasuredJob, edl_run
from edl.proof.proof_hosts import HostLink, ProofHosts
from edl.proof.step_figures import set_file

BOOT_S, PATIENCE_S = 240.0, 90.0


class ProofPlan(msgspec.Struct, frozen=True):
    """The rounds and seconds of each part of the proof, which ends with whichever comes first."""

    workers: int
    ring: str
    device: str
    step_ms: float = 20.0
    resizes: int = 10  # there and back
    resizes_s: float = 210.0
    kills: int = 6
    kills_s: float = 150.0
    turns: int = 20
    turns_s: float = 90.0


class ProofJob(MeasuredJob):
    """A job that a terminal's Ctrl-C does not reach: this process ends it."""

    own_session = True

    def resize(self, size: int) -> None:
        self.edl("scale", self.name, str(size))

    def kill(self, worker: int) -> float:
        """Return when it was killed. `worker`: the number of its notes."""
        killed = time.monotonic()
        os.kill(worker, signal.SIGKILL)
        return killed

    def put(self, name: str, text: str) -> None:
        """Write a file that all workers look for."""
        set_file(self.folder / name, text)

    def finished(self) -> int:
        """Return the job's exit code, once all notes are here."""
        self.wait(lambda: self.launcher.poll() is not None, "the end of the job", PATIENCE_S)
        return self.launcher.returncode

    @contextlib.contextmanager
    def ended(self) -> Iterator[None]:
        """End the job's processes at the end, whatever happens."""
        try:
            yield
        finally:
            if self.launcher.poll() is None:
                self.launcher.send_signal(signal.SIGINT)
            self.end()


class LocalProofJob(ProofJob):
    def __init__(self, name: str, plan: ProofPlan, folder: Path, worker: Sequence[str]) -> None:
        flags = ("--ring", plan.ring, "--max-restarts", str(plan.kills + 1), "--min-np", "1")
        run = edl_run(plan.workers, name, *flags, "--audit", str(folder / "audit"))
        command = [*INTERRUPTED_WITH_PARENT, *run, *(word.replace("{folder}", str(folder)) for word in worker)]
        super().__init__(folder, command, name=name, OMP_NUM_THREADS="1", TMPDIR=str(folder))


class HostsProofJob(ProofJob):
    """A job of plain processes on several hosts. Its own launcher is the process of its coordinator, here."""

    def __init__(self, name: str, plan: ProofPlan, folder: Path, hosts: ProofHosts, worker: Sequence[str]) -> None:
        """Start the coordinator and the first workers. `worker`: {clock} in it stands for a host's clock."""
        self._hosts, self._worker, self._wanted = hosts, worker, 0
        self._replaces, self._restarts = plan.kills > 0, plan.kills + 1
        self._running: dict[int, HostLink] = {}  # the host of each worker, by its number
        self._killed: set[int] = set()
        self._codes: list[int] = []
        keeper = [sys.executable, "-P", "-m", "edl.horovodrun.coordinator_process", "--interface", hosts.interface]
        command = [*INTERRUPTED_WITH_PARENT, *keeper, "--", *worker]
        super().__init__(folder, command, name=name, EDL_JOB=name, TMPDIR=str(folder))
        kept = Folder(folder / "home" / "jobs" / name)
        with self._ended_on_failure():
            self.wait(lambda: (record := kept.read()) is not None and record.coordinator, "the coordinator", BOOT_S)
            record = kept.read()
            assert record is not None
            hosts.put(f"secret.{name}", kept.secret.read_text())
            self._told = {
                "EDL_JOB": name,
                "EDL_COORDINATOR": record.coordinator,
                "EDL_SECRET_FILE": f"{{folder}}/secret.{name}",
                "EDL_HOME": f"{{folder}}/home.{name}",
                "EDL_NP": str(plan.workers),
                "EDL_MIN_NP": "1",
                "EDL_RING": plan.ring,
                "OMP_NUM_THREADS": "1",
                "TF_CPP_MIN_LOG_LEVEL": "3",
            } | ({"EDL_AUDIT": "{folder}/audit"} if self._replaces else {})
            self._grow(plan.workers)

    @contextlib.contextmanager
    def _ended_on_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            with self.ended():
                raise

    def resize(self, size: int) -> None:
        super().resize(size)
        self._grow(size)

    def kill(self, worker: int) -> float:
        self._killed.add(worker)
        return self._hosts.kill(worker)

    def put(self, name: str, text: str) -> None:
        self._wanted = 0  # workers that exit from now on are not replaced
        self._hosts.put(name, text)

    def look(self) -> None:
        """Take in which workers have exited, and start others in place of those that were lost."""
        for link in self._hosts.links:
            for exited in link.exits():
                number = link.numbered(exited.pid)
                if exited.code and number not in self._killed:
                    self._codes.append(exited.code)
                    if not self._restarts or number not in self._running:
                        raise EdlError(f"a process on {link.host.name} ended with {exited.code}:\n{exited.last_words}")
                self._running.pop(number, None)
        lost = self._wanted - len(self._running)
        if self._replaces and lost > 0:
            self._restarts -= lost
            self._grow(self._wanted)

    def _grow(self, size: int) -> None:
        """Start workers where there are slots, host by host, until there are `size`."""
        self._wanted = size
        missing = size - len(self._running)
        for link in self._hosts.links:
            free = link.host.slots - sum(host is link for host in self._running.values())
            for _ in range(min(free, missing)):
                words = [word.replace("{clock}", repr(link.clock_s)) for word in self._worker]
                self._running[link.numbered(link.start(words, self._told))] = link
                missing -= 1

    def finished(self) -> int:
        code = super().finished()
        self._hosts.sync()
        self.look()
        return next((one for one in self._codes if one), code)
