"""The job of `partition.py`: a ZooKeeper and three workers, each on a host of its own, that share a disk.

Owns: how they are started, reading what they write down, and waiting for it. Does not own: the hosts (`partition_net`),
nor what happens to their links (`partition`).
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import DIGITS
from edl.coordination.zookeeper_server import LocalServer, base_config
from edl.core.audit.kept_steps import WorkerAudit
from edl.protocol.audit_lines import Committed, Sat
from edl.trainer.data.audit_files import read
from tests.soaks.partition_net import Host

JOB = "partition"
SESSION_S, STEP_TIMEOUT_S, STEP_S = 6.0, 10.0, 0.02
PORT = 2181
START_S = 60.0
LOOK_S = 0.1


class NotComeTrue(Exception):
    """What was waited for did not happen in time."""


class Watched(ABC):
    """A trial that looks, while it waits, whether what it waits for can still come true; `wrong` is what did not."""

    def __init__(self, wrong: list[str]) -> None:
        self._wrong = wrong

    @abstractmethod
    def _look(self) -> None:
        """Raises NotComeTrue."""

    def _let_pass(self, until: float) -> None:
        while (left_s := until - time.monotonic()) > 0:
            self._look()
            time.sleep(min(LOOK_S, left_s))

    def _wait(self, ready: Callable[[], object], patience_s: float, what: str, *, fatal: bool = True) -> None:
        deadline = time.monotonic() + patience_s
        while not ready():
            self._look()
            if time.monotonic() > deadline:
                if fatal:
                    raise NotComeTrue(f"not within {patience_s:g} s: {what}")
                self._wrong.append(f"not within {patience_s:g} s: {what}")
                return
            time.sleep(LOOK_S)


class Server(LocalServer):
    """The ZooKeeper of the job, on a host of its own."""

    def __init__(self, folder: Path, host: Host) -> None:
        folder.mkdir()
        super().__init__(folder, base_config(folder, PORT) | {"clientPortAddress": "0.0.0.0"})
        self._host = host

    def serve(self) -> None:
        self.spawn()
        if not self._host.call(lambda: asyncio.run(self.wait_ready(START_S))):
            raise NotComeTrue(f"ZooKeeper does not start: {self.last_words()}")

    def _command(self) -> list[str]:
        return self._host.command(*super()._command())


class Job:
    """Three workers on three hosts, and what they write down on the disk that all share."""

    def __init__(self, folder: Path, framework: str, server: Host, hosts: list[Host]) -> None:
        (folder / "secret").write_text(os.urandom(16).hex())
        (folder / "secret").chmod(0o600)
        self.folder, self.hosts = folder, {host.name: host for host in hosts}
        self.environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("EDL_")},
            "EDL_JOB": JOB,
            "EDL_COORDINATOR": f"{server.address}:{PORT}",
            "EDL_SECRET_FILE": str(folder / "secret"),
            "EDL_NP": str(len(hosts)),
            "EDL_SESSION_TIMEOUT": f"{SESSION_S:g}",
            "EDL_STEP_TIMEOUT": f"{STEP_TIMEOUT_S:g}",
            "EDL_AUDIT": str(folder / "audit"),
            "EDL_HOME": str(folder / "home"),
            "XDG_RUNTIME_DIR": str(folder),  # so that nothing of a killed worker is left
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "",
        }
        worker = harness.worker(folder, "--model", "digits", "--framework", framework, "--step-ms", 1000 * STEP_S)
        self.workers = {host.name: self._start(host, worker) for host in hosts}

    def _start(self, host: Host, worker: list[str]) -> subprocess.Popen[bytes]:
        with (self.folder / f"{host.name}.log").open("wb") as log:
            environ = {**self.environ, "EDL_WORKER_ID": host.name}
            return subprocess.Popen(
                host.command(*worker), env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def audit(self, name: str) -> WorkerAudit:
        return next((one for one in self.audits() if one.worker == name), WorkerAudit(name, JOB, ()))

    def audits(self) -> list[WorkerAudit]:
        return read(self.folder / "audit") if any(self.folder.glob("audit/*.jsonl")) else []

    def place(self, name: str) -> Sat:
        """Where a worker sat down last."""
        sat = [line for line in self.audit(name).lines if isinstance(line, Sat)]
        return sat[-1] if sat else Sat(0, 0, 0, 0)

    def committed(self, name: str) -> list[tuple[int, int]]:
        lines = self.audit(name).lines
        return [(line.generation, line.step) for line in lines if isinstance(line, Committed)]

    def steps(self, name: str) -> list[dict[str, Any]]:
        """Of one worker, with the time at which it was through with each."""
        return [note for note in self.notes(self.workers[name].pid) if note["kind"] == "step"]

    def newest(self, name: str) -> int:
        """Cheap: the caller that waits looks often, and the switch shares this process."""
        path = self.folder / f"{self.workers[name].pid}.jsonl"
        if not path.exists():
            return 0
        with path.open("rb") as notes:
            notes.seek(max(0, path.stat().st_size - 2000))
            lines = notes.read().split(b"\n")[:-1]
        steps = [json.loads(line)["step"] for line in lines[1:] if line.startswith(b'{"kind": "step"')]
        return max(steps, default=0)

    def notes(self, pid: int) -> list[dict[str, Any]]:
        path = self.folder / f"{pid}.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]

    def events(self) -> list[dict[str, Any]]:
        """Of all leaders, by the logs of their daemons: no connection to any worker is needed."""
        found: list[dict[str, Any]] = []
        for path in (self.folder / "home" / "jobs" / JOB / "logs").glob("*.daemon.log"):
            lines = path.read_text(errors="replace").split("\n")[:-1]
            found += [json.loads(line[at:]) for line in lines if (at := line.find('{"ts"')) >= 0]
        return sorted(found, key=lambda event: event["ts"])

    def leader(self) -> str:
        return str(next(event for event in reversed(self.events()) if event["kind"] == "leader_elected")["worker"])

    def last_line(self, name: str) -> str:
        lines = (self.folder / f"{name}.log").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def finish(self) -> int:
        """After a few epochs more; returns how many there were."""
        notes = [note for worker in self.workers.values() for note in self.notes(worker.pid)]
        epochs = max((note["samples"] // DIGITS for note in notes if note["kind"] == "epoch"), default=0) + 3
        harness.set_file(self.folder / "epochs", str(epochs))
        return epochs

    def story(self) -> str:
        logs = [*self.folder.glob("*.log"), *self.folder.glob(f"home/jobs/{JOB}/logs/*.log")]
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in logs)
