"""Six short jobs on a cluster of four slots: when is each over, if the policy may change their sizes, and if not?

    python -m benchmarks.short_jobs [--policies fifo goodput] [--starts on off] [--gap 3] [--json]

The jobs have 8,000 to 48,000 samples, 32 in a worker's mini-batch, steps of 30 ms at least, one worker to begin with
and up to four; one comes every `--gap` seconds. `--starts` is their `--warm-starts`.

    mean, longest   from a job's submission to its end, in seconds
    makespan        from the first submission to the last end
    changes         of a job's size, all together
    training        share of the slots' time in which they trained
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.real_cluster import LOOK_S, SAMPLES, Line, RealCluster

SLOTS, STEP_S, LONGEST_S = 4, 0.03, 300.0
JOBS = (8_000, 16_000, 24_000, 32_000, 40_000, 48_000)
ORDER = (3, 0, 5, 1, 4, 2)  # in which they come: long and short ones in turns
PARAMETERS = {"goodput": ("--set", "settle_s=30")}


class Found(NamedTuple):
    mean: float
    longest: float
    makespan: float
    changes: int
    training: float


def lines(gap_s: float) -> list[Line]:
    found = []
    for place, number in enumerate(ORDER):
        epochs = round(JOBS[number] / SAMPLES["digits"])
        found.append(Line(f"job{number}", place * gap_s, "digits", 1, 1, SLOTS, epochs, STEP_S))
    return found


def played(policy: str, start: str, jobs: list[Line]) -> Found:
    with tempfile.TemporaryDirectory(prefix="edl-cluster-") as folder:
        cluster = RealCluster(Path(folder))
        cluster.environ["EDL_WARM_STARTS"] = start
        nodes = ("--nodes", f"localhost:{SLOTS}")
        cluster.edl("cluster", "start", *nodes, "--policy", policy, *PARAMETERS.get(policy, ()))
        try:
            began, coming = time.monotonic(), list(jobs)
            while coming or not all(job.over for job in cluster.jobs().values()):
                while coming and time.monotonic() - began >= coming[0].after_s:
                    cluster.submit(coming.pop(0))
                if time.monotonic() - began > LONGEST_S:
                    raise SystemExit(f"not over after {LONGEST_S:g} s: {[*cluster.jobs()]}")
                time.sleep(LOOK_S / 2)
            accounts = cluster.accounts()
            if not all(job.phase.value == "finished" for job in cluster.jobs().values()):
                raise SystemExit(f"not all have finished: {accounts}")
        finally:
            cluster.edl("cluster", "stop", "--now")
    times = [job["ended"] - job["submitted"] for job in accounts]
    makespan = max(job["ended"] for job in accounts) - min(job["submitted"] for job in accounts)
    training = sum(job["training_s"] for job in accounts) / (makespan * SLOTS)
    return Found(statistics.fmean(times), max(times), makespan, sum(job["changes"] for job in accounts), training)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", nargs="+", default=["fifo", "goodput"])
    parser.add_argument("--starts", nargs="+", default=["on", "off"], choices=["on", "off", "eager"])
    parser.add_argument("--gap", type=float, default=3.0, help="seconds from one arrival to the next")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    for policy, start in itertools.product(options.policies, options.starts):
        found = {"policy": policy, "start": start, **played(policy, start, lines(options.gap))._asdict()}
        rounded = {key: round(value, 2) if isinstance(value, float) else value for key, value in found.items()}
        words = " ".join(f"{key}={value}" for key, value in rounded.items())
        print(json.dumps(rounded) if options.json else words, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
