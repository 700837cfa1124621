"""Changes of size under plain `horovodrun`: edl beside stock Horovod elastic, the same model, the same line to launch.

    python -m benchmarks.horovodrun [--sizes 2 3 2 4 1] [--framework torch] [--modes edl stock] [--rounds 1]

One job of each kind, in turn; its discovery script prints one size after the other, each as soon as all have trained at
the one before. A survivor's pause is its longest time between two ends of steps around a change, less its median step
before; printed is the longest of all survivors, then horovodrun's exit status and, of edl's job, the audit.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.pause import AFTER_STEPS, BEFORE_STEPS, Options, Run, Worker, figures, program, wait
from edl.core.audit.account import account
from edl.trainer.data.audit import read

Change = tuple[int, int]
END_S = 120.0


class Chain(Run):
    """One job that goes through all the sizes."""

    def __init__(self, mode: str, framework: str, folder: Path, sizes: list[int]) -> None:
        super().__init__(
            mode, framework, folder, (sizes[0], sizes[-1]), Options(state_mb=0, step_ms=20.0, ring="horovod")
        )
        self.sizes = sizes
        self.audit = folder / "audit"

    def go(self) -> tuple[dict[Change, float], int]:
        """Pauses in milliseconds, and horovodrun's exit status."""
        with self.log.open("wb") as log:
            job = self._launch(log)
            try:
                pauses = {change: self._change(job, *change) for change in itertools.pairwise(self.sizes)}
                self._set("stop", self._newest_step() + 100 if self.mode == "edl" else 0)
                return pauses, job.wait(END_S)
            finally:
                if job.poll() is None:
                    job.terminate()
                    job.wait(END_S)

    def _launch(self, log: object) -> subprocess.Popen[bytes]:
        worker = [sys.executable, "-m", "benchmarks.pause_worker", self.mode, self.framework, str(self.folder)]
        self._hosts(self.sizes[0])
        script = self.folder / "hosts.sh"
        script.write_text(f"#!/bin/sh\ncat {self.folder}/hosts\n")
        script.chmod(0o755)
        limits = ["-np", str(self.sizes[0]), "--min-np", "1", "--max-np", "8", "--network-interface", "lo"]
        environ = {**os.environ, "EDL_HOME": str(self.folder / "home"), "EDL_JOB": "pause", "TF_CPP_MIN_LOG_LEVEL": "3"}
        environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        if self.mode == "edl":
            environ["EDL_AUDIT"] = str(self.audit)
        command = [program("horovodrun"), *limits, "--host-discovery-script", str(script), *worker]
        return subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log)  # type: ignore[call-overload]

    def _change(self, job: subprocess.Popen[bytes], before: int, after: int) -> float:
        wait(lambda: self._training(before, BEFORE_STEPS), f"{before} workers", job, self.log)
        there = {path: len(Worker.read(path).steps) for path in self.folder.glob("*.steps")}
        asked = time.time()
        self._hosts(after)
        wait(lambda: self._training(after, AFTER_STEPS), f"{after} workers", job, self.log)
        survivors = [self._since(path, made) for path, made in there.items()]
        return figures([one for one in survivors if one.steps and one.steps[-1][1] == after], asked)["pause"]

    @staticmethod
    def _since(path: Path, made: int) -> Worker:
        """Of a job with many changes, what belongs to this one; a worker that had ended before has nothing."""
        worker = Worker.read(path)
        fresh = len(worker.steps) > made
        return Worker(steps=worker.steps[max(0, made - BEFORE_STEPS) :] if fresh else [])

    def _newest_step(self) -> int:
        return self._step()


def told(audit: Path) -> str:
    found = account(read(audit))
    steps = sum(epoch.trained for epoch in found.epochs)
    lost, again = sum(epoch.lost for epoch in found.epochs), sum(epoch.repeated for epoch in found.epochs)
    return f"audit: {steps} samples trained, {lost} lost, {again} repeated"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2, 3, 2, 4, 1])
    parser.add_argument("--framework", choices=["torch", "tensorflow"], default="torch")
    parser.add_argument("--modes", nargs="+", default=["edl", "stock"])
    parser.add_argument("--rounds", type=int, default=1, help="medians of so many jobs of each kind")
    options = parser.parse_args()
    found: dict[str, list[dict[Change, float]]] = {mode: [] for mode in options.modes}
    for _, mode in itertools.product(range(options.rounds), options.modes):
        with tempfile.TemporaryDirectory() as folder:
            chain = Chain(mode, options.framework, Path(folder), options.sizes)
            pauses, status = chain.go()
            found[mode].append(pauses)
            last = told(chain.audit) if mode == "edl" else ""
            print(f"{mode}: horovodrun's exit status {status}  {last}", flush=True)
    for change in itertools.pairwise(options.sizes):
        medians = {mode: statistics.median(one[change] for one in rounds) for mode, rounds in found.items()}
        line = "  ".join(f"{mode} {pause:.0f} ms" for mode, pause in medians.items())
        times = f"  ({medians['stock'] / medians['edl']:.0f} times)" if len(medians) == 2 else ""
        print(f"{change[0]} -> {change[1]}  {line}{times}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
