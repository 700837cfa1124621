"""What a newcomer takes from the request to its first step, and what the others pay meanwhile: forked and started anew.

    python -m benchmarks.newcomers [--frameworks torch tensorflow] [--rings torch horovod] [--starts warm cold]
                                   [--rounds 1] [--step-ms 30] [--json]

Two workers train; `edl scale` asks for three, and then one of the three gets a `kill -9` and is replaced. Of each:

    start    from the moment at which `edl scale` is typed, or from the kill, until the last of three workers has made
             its first step in the new ring
    longest  the longest step of the two others until then, as a ratio to their median step before; after a kill from
             the first step of their own ring on
    warm     how long the process that newcomers are forked from took to import, and the others' longest step meanwhile

Exit code 1 if the job fails.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import Job, Note, edl_run, worker
from edl.proof.step_figures import gaps

NAME = "newcomers"
STEPS = 40
Figures = dict[str, float]


def longest(workers: list[list[Note]], median: float, since: float, until: float) -> float:
    return max(gap for steps in workers for end, gap in gaps(steps) if since < end <= until + 0.001) / median


class Newcomers:
    """One job."""

    def __init__(self, framework: str, ring: str, start: str, step_ms: float, folder: Path) -> None:
        self.start, self.folder = start, folder
        command = worker(folder, "--framework", framework, "--step-ms", step_ms)
        flags = ["--ring", ring] if framework == "torch" else []
        environ = {"EDL_WARM_STARTS": "on" if start == "warm" else "off", "EDL_BENCHMARK_DEVICE": "cpu"}
        self.job = Job(folder, [*edl_run(2, NAME, *flags), *command], name=NAME, **environ)

    def measure(self) -> Figures:
        job = self.job
        try:
            job.wait(lambda: job.trains(2, STEPS), "two workers")
            began = time.monotonic()
            if self.start == "warm":
                job.wait(lambda: self._warm_words()[:2] not in {"", "no"}, "a process to fork from")
                if not self._warm_words().startswith("on"):
                    raise SystemExit(f"newcomers are not forked: warm starts {self._warm_words()}")
            time.sleep(1.5)
            found = {"median ms": 1000 * self._median(), "warm longest": self._longest_since(began)}
            time.sleep(1.5)
            asked = time.monotonic()
            job.edl("scale", NAME, "3")
            found |= self._until_three("scale", asked, asked)
            newest = {pid: steps[-1]["at"] for pid, steps in job.notes.steps().items() if steps}
            victim = max(newest, key=lambda pid: newest[pid])
            time.sleep(2)
            killed = time.monotonic()
            os.kill(victim, signal.SIGKILL)
            job.wait(lambda: job.trains(2, 2, killed), "the others")
            since = max(self._first(steps, 2, killed) for pid, steps in job.notes.steps().items() if pid != victim)
            return found | self._until_three("kill", killed, since)
        finally:
            print(f"  {self._warm_words()}", flush=True)
            job.stop()

    def _warm_words(self) -> str:
        record = json.loads((self.folder / "home" / "jobs" / NAME / "record.json").read_text())
        return str(record["warm_starts"])

    def _median(self) -> float:
        return statistics.median(gap for steps in self.job.notes.steps().values() for _, gap in gaps(steps)[-STEPS:])

    def _longest_since(self, since: float) -> float:
        return longest(list(self.job.notes.steps().values()), self._median(), since, time.monotonic())

    @staticmethod
    def _first(steps: list[Note], size: int, since: float) -> float:
        """When the first step at that size after that moment ended; 0.0 if there is none."""
        return next((note["at"] for note in steps if note["at"] > since and note["size"] == size), 0.0)

    def _until_three(self, name: str, asked: float, since: float) -> Figures:
        survivors = [pid for pid, steps in self.job.notes.steps().items() if steps and steps[-1]["at"] > asked - 1]
        noted = self.job.notes.steps()
        before = statistics.median(gap for pid in survivors for end, gap in gaps(noted[pid]) if end < asked)
        self.job.wait(lambda: self.job.trains(3, 3, asked), "three workers")
        noted = self.job.notes.steps()
        firsts = {pid: self._first(steps, 3, since) for pid, steps in noted.items()}
        stayed = [noted[pid] for pid in survivors if firsts[pid]]
        switched = min(firsts[pid] for pid in survivors if firsts[pid])
        return {
            f"{name} start s": max(firsts.values()) - asked,
            f"{name} longest": longest(stayed, before, since, switched - 0.002),
            f"{name} with switch": longest(stayed, before, since, switched),
        }


def main() -> int:
    parser = harness.arguments(__doc__)
    parser.add_argument("--frameworks", nargs="+", default=["torch", "tensorflow"])
    parser.add_argument("--rings", nargs="+", default=["torch", "horovod"], help="of PyTorch's jobs")
    parser.add_argument("--starts", nargs="+", default=["warm", "cold"], choices=["warm", "cold"])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--step-ms", type=float, default=30.0)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for framework, start in itertools.product(options.frameworks, options.starts):
        for ring in options.rings if framework == "torch" else ["horovod"]:
            rounds = []
            for _ in range(options.rounds):
                with tempfile.TemporaryDirectory() as folder:
                    rounds.append(Newcomers(framework, ring, start, options.step_ms, Path(folder)).measure())
            found = {name: round(value, 2) for name, value in harness.medians(rounds).items()}
            rows.append({"framework": framework, "ring": ring, "start": start, **found})
            told = rows[-1]
            print(json.dumps(told) if options.json else " ".join(f"{k}={v}" for k, v in told.items()), flush=True)
    harness.keep(options.keep, rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
