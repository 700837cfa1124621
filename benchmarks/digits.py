"""A job that learns the UCI digits until it is told to end (`resizes_worker.py`), in a folder of its own.

Owns: what benchmarks that change a job while it trains have in common: the job, its notes, losses to compare with.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SAMPLES = 1797
LEEWAY = 0.25  # of the losses of jobs of fixed size
NAME = "digits"
PATIENCE_S = 120
EPOCH_S = 5.0  # however busy the machine is
STOP_STEPS = 200  # all workers read of the end before it comes


class Job:
    """One job in a folder of its own."""

    def __init__(
        self, framework: str, folder: Path, workers: int, step_s: float, *more: str, flags: Sequence[str] = ()
    ) -> None:
        """`more`: arguments of the worker; `flags`: more of `edl run`."""
        self.folder = folder
        self.environ = {
            **os.environ,
            "EDL_HOME": str(folder / "home"),
            "EDL_AUDIT": str(folder / "audit"),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        self._edl = str(Path(sys.executable).with_name("edl"))
        worker = [sys.executable, "-m", "benchmarks.resizes_worker", framework, str(folder), "--step-time", str(step_s)]
        worker += more
        with (folder / "output.log").open("wb") as log:
            command = [self._edl, "run", "-np", str(workers), "--job", NAME, *flags, *worker]
            self.launcher = subprocess.Popen(
                command, env=self.environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def edl(self, *arguments: str) -> str:
        command = [self._edl, *arguments]
        done = subprocess.run(command, env=self.environ, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(arguments)}: {done.stderr}\n{self.log()}")
        return done.stdout

    def wait_training(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not any('"committed"' in path.read_text() for path in self.folder.glob("audit/*.jsonl")):
            if self.launcher.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the job does not train:\n{self.log()}")
            time.sleep(0.1)

    def end(self, epochs: int | None = None) -> int:
        """After so many epochs, or the next few; returns how many there were."""
        if epochs is None:
            begun = [note["samples"] // SAMPLES for note in self.notes() if note["kind"] == "epoch"]
            epochs = max(begun, default=0) + 3  # not by the status, which may be old: perhaps no worker leads
        working = self.folder / "epochs.new"
        working.write_text(str(epochs))
        working.rename(self.folder / "epochs")
        if self.launcher.wait(PATIENCE_S * 5 + EPOCH_S * epochs):
            raise SystemExit(f"the job failed:\n{self.log()}")
        return epochs

    def stop(self) -> None:
        """Have all workers break off after the same step, a moment from now."""
        working = self.folder / "stop.new"
        working.write_text(str(self.newest_step() + STOP_STEPS))
        working.rename(self.folder / "stop")
        try:
            code = self.launcher.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise SystemExit(f"the job does not end: {self.edl('status', NAME)}\n{self.log()}") from None
        if code:
            raise SystemExit(f"the job failed:\n{self.log()}")

    def notes(self) -> list[dict[str, Any]]:
        lines = [line for path in self.folder.glob("*.jsonl") for line in path.read_text().split("\n")[:-1]]
        return [json.loads(line) for line in lines]

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.edl("events", NAME, "--json").splitlines()]

    def steps(self) -> dict[int, list[float]]:
        """When each step ended, by the pid of its worker; of workers that were started with `--note-steps`."""
        return {pid: [note["at"] for note in notes] for pid, notes in self.step_notes().items()}

    def step_notes(self) -> dict[int, list[dict[str, Any]]]:
        """The same, as each worker noted it."""
        found: dict[int, list[dict[str, Any]]] = {}
        for path in self.folder.glob("*.jsonl"):
            lines = path.read_text().split("\n")[:-1]  # a worker that was killed may have left half a line
            notes = (json.loads(line) for line in lines)
            found[int(path.stem)] = [note for note in notes if note["kind"] == "step"]
        return found

    def newest_step(self) -> int:
        """That any worker has committed, by the audit: no leader need answer."""
        steps = [0]
        for path in self.folder.glob("audit/*.jsonl"):
            for line in reversed(_tail(path).splitlines()[-5:]):
                if line.startswith(b'["committed"') and line.endswith(b"]"):
                    steps.append(int(json.loads(line)[2]))
                    break
        return max(steps)

    def log(self) -> str:
        return (self.folder / "output.log").read_text(errors="replace")[-3000:]


def _tail(path: Path) -> bytes:
    """Its last lines, the first of them perhaps cut off."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 4096))
        return file.read()


def compared(notes: list[dict[str, Any]]) -> dict[str, int]:
    """The weights after each switch, or after the first step in each ring."""
    digests = defaultdict(set)
    for note in notes:
        if note["kind"] in ("switch", "end"):
            digests[note["kind"], note["step"]].add(note["digest"])
    return {"compared": len(digests), "different": sum(len(found) > 1 for found in digests.values())}


def fixed_loss(framework: str, workers: int, epochs: int) -> float:
    with tempfile.TemporaryDirectory() as name:
        job = Job(framework, Path(name), workers, 0.0)
        try:
            job.end(epochs)
        finally:
            job.launcher.terminate()  # harmless once it has ended
            job.launcher.wait()
        return statistics.mean(note["loss"] for note in job.notes() if note["kind"] == "end")


def near(loss: float, fixed: Sequence[float]) -> bool:
    """Whether a loss lies within those of jobs of fixed size, and somewhat beyond."""
    return min(fixed) * (1 - LEEWAY) <= loss <= max(fixed) * (1 + LEEWAY)
