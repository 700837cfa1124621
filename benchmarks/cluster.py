"""Real jobs on a real cluster of this machine, under one policy after the other: what owners wait, and what is used.

    python -m benchmarks.cluster --jobs 6 --slots 4 --policies fifo elastic-tiresias

The same jobs come at the same times under each policy: handwritten digits with PyTorch, of different lengths and
limits, and arrivals with exponential gaps. Each worker records what it trains. Verdict: all jobs finish, every sample
of every job is trained exactly once, and no device is held at the end. Times are shown side by side, and judged by
nobody: the policies are compared on published traces (docs/policies.md), where chance is small.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from edl.core.audit.account import account
from edl.trainer.data.audit import read

ROOT = Path(__file__).parents[1]
DIGITS = ROOT / "examples" / "torch_digits.py"
EDL = [sys.executable, "-c", "import sys; from horovod_edl import main; sys.exit(main())"]
PARAMETERS = {"elastic-tiresias": ("--set", "dwell_s=5", "--set", "limits=60,600", "--set", "pending=0")}
STEP_S = 0.1


class Line(NamedTuple):
    """One job, and when it comes."""

    name: str
    after_s: float
    np: int
    least: int
    most: int
    epochs: int


def workload(jobs: int, slots: int, gap_s: float, seed: int) -> list[Line]:
    chance = random.Random(seed)
    at, found = 0.0, []
    for number in range(jobs):
        np = chance.randint(1, max(1, slots // 2))
        most = min(slots, 2 * np)
        found.append(Line(f"job{number}", at, np, max(1, np // 2), most, chance.randint(2, 6)))
        at += chance.expovariate(1 / gap_s)
    return found


class Trial:
    """One policy."""

    def __init__(self, folder: Path, policy: str, slots: int) -> None:
        self.folder, self.policy, self.slots = folder, policy, slots
        self.environ = {**os.environ, "EDL_HOME": str(folder), "PYTHONPATH": str(ROOT)}

    def edl(self, *words: str, **environ: str) -> str:
        done = subprocess.run(
            [*EDL, *words], env={**self.environ, **environ}, cwd=ROOT, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"edl {' '.join(words)}: {done.stderr}")
        return done.stdout

    def run(self, lines: list[Line]) -> dict[str, Any]:
        more = PARAMETERS.get(self.policy, ())
        self.edl("cluster", "start", "--nodes", f"localhost:{self.slots}", "--policy", self.policy, *more)
        try:
            began = time.time()
            for line in lines:
                time.sleep(max(0.0, began + line.after_s - time.time()))
                self._submit(line)
                print(
                    f"  {time.time() - began:5.0f} s  {line.name} comes: {line.np} ({line.least} to {line.most})",
                    flush=True,
                )
            for line in lines:
                self.edl("wait", line.name, "--timeout", "1800")
            return self._figures(lines)
        finally:
            self.edl("cluster", "stop", "--now")

    def _submit(self, line: Line) -> None:
        sizes = ("-np", str(line.np), "--min-np", str(line.least), "--max-np", str(line.most))
        script = (sys.executable, str(DIGITS), "--epochs", str(line.epochs), "--step-time", str(STEP_S))
        audit = str(self.folder / "audits" / line.name)
        self.edl("submit", "--name", line.name, *sizes, *script, EDL_AUDIT=audit)

    def _figures(self, lines: list[Line]) -> dict[str, Any]:
        accounts = json.loads(self.edl("cluster", "accounts", "--json"))["jobs"]
        times = sorted(job["ended"] - job["submitted"] for job in accounts)
        makespan = max(job["ended"] for job in accounts) - min(job["submitted"] for job in accounts)
        status = json.loads(self.edl("cluster", "status", "--json"))
        audits = {line.name: account(read(self.folder / "audits" / line.name)) for line in lines}
        whole = [len(audits[line.name].epochs) == line.epochs and audits[line.name].clean for line in lines]
        return {
            "policy": self.policy,
            "mean_s": statistics.mean(times),
            "p95_s": times[min(len(times) - 1, round(0.95 * len(times)))],
            "makespan_s": makespan,
            "training_share": sum(job["training_s"] for job in accounts) / (makespan * self.slots),
            "held_share": sum(job["device_s"] for job in accounts) / (makespan * self.slots),
            "changes": sum(job["changes"] for job in accounts),
            "finished": sum(job["state"] == "finished" for job in accounts),
            "exactly_once": all(whole),
            "leaked": sum(len(node["held"]) for node in status["nodes"]),
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--gap", type=float, default=8.0, help="mean seconds from one arrival to the next")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--policies", nargs="+", default=["fifo", "elastic-tiresias"])
    options = parser.parse_args()
    lines = workload(options.jobs, options.slots, options.gap, options.seed)
    found = []
    for policy in options.policies:
        print(f"{policy}:", flush=True)
        with tempfile.TemporaryDirectory(prefix="edl-cluster-") as folder:
            found.append(Trial(Path(folder), policy, options.slots).run(lines))
    print(f"\n{options.jobs} jobs on {options.slots} slots of {os.cpu_count()} cores\n")
    head = ("policy", "mean", "p95", "makespan", "train", "held", "changes", "finished", "exactly once", "leaked")
    print(f"| {' | '.join(head)} |")
    print("|" + " --- |" * len(head))
    for one in found:
        print(
            f"| {one['policy']} | {one['mean_s']:.0f} s | {one['p95_s']:.0f} s | {one['makespan_s']:.0f} s "
            f"| {one['training_share']:.0%} | {one['held_share']:.0%} | {one['changes']} "
            f"| {one['finished']} of {options.jobs} | {'yes' if one['exactly_once'] else 'NO'} | {one['leaked']} |"
        )
    good = all(one["finished"] == options.jobs and one["exactly_once"] and not one["leaked"] for one in found)
    print(f"\nverdict: {'good' if good else 'BAD'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
