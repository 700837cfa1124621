"""How long does a decision take, with so many jobs and devices?

Each job has a curve of its own, most of them with a dip where its workers leave their first node; half of the jobs run
already. Speeds are there before, as an analyzer keeps them; what a fit and a job's rates take is measured beside it.
The processor's time of this process is counted, on one core.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import numpy as np

from edl.cluster.analyzer.analyzer import Analyzer
from edl.cluster.analyzer.predicted import Batches
from edl.cluster.candidates import offer
from edl.cluster.decision import ClusterPolicy
from edl.cluster.optimum import exact, near
from edl.cluster.policies.dp import ThroughputOptimizer
from edl.cluster.policies.gavel import Gavel
from edl.cluster.policies.goodput import Goodput
from edl.cluster.speed import Table
from edl.cluster.views import Aim, ClusterView, JobView, Node

NODE = 8
LIMITS_S = {1_000: 0.05, 10_000: 5.0}  # what `dp` and `goodput` may take with so many jobs and devices
POLICIES: dict[str, ClusterPolicy] = {"dp": ThroughputOptimizer(), "goodput": Goodput(), "gavel": Gavel()}


def cluster(jobs: int, devices: int, largest: int, seed: int = 0) -> ClusterView:
    rng = np.random.default_rng(seed)
    left, views = devices, []
    for at in range(jobs):
        sizes = np.arange(1, largest + 1)
        speeds = sizes ** rng.uniform(0.3, 1.0) * np.where(sizes > NODE, rng.uniform(0.6, 1.0), 1.0)
        workers = min(int(rng.integers(1, 5)), left) if rng.random() < 0.5 else 0
        left -= workers
        ran = float(rng.uniform(60, 20_000)) if workers else 0.0
        views.append(
            JobView(
                name=f"job-{at:05d}",
                submitted=float(at),
                request=4,
                smallest=1,
                largest=largest,
                speed=Table(dict(enumerate(speeds.tolist(), start=1)), 32),
                change_s=1.0,
                workers=workers,
                ran=ran,
                waited=10.0,
                service=ran * workers,
                most_tried=max(workers, int(rng.integers(0, 33))),
            )
        )
    return ClusterView(tuple(Node(f"node-{at:05d}", NODE) for at in range(devices // NODE)), tuple(views))


def decision(policy: ClusterPolicy, view: ClusterView, rounds: int) -> float:
    """The median, after a first one in which curves are worked out."""
    policy.decide(view, 0.0)
    took = []
    for _ in range(rounds):
        began = time.process_time()
        policy.decide(view, 0.0)
        took.append(time.process_time() - began)
    return statistics.median(took)


def missed(view: ClusterView) -> tuple[float, float]:
    """Of the best sum of worths, how much `near` misses, and how much it says that it may."""
    policy = Goodput()
    offered = offer(view, view.jobs, policy.reach, Aim.PROGRESS)
    worth = policy.worth(offered)
    rows = np.arange(len(worth))
    best = worth[rows, exact(offered.sizes, worth, view.devices).columns].sum()
    chosen = near(offered.sizes, worth, view.devices)
    return float(1 - worth[rows, chosen.columns].sum() / best), float(chosen.gap / best)


def fits(rounds: int) -> tuple[float, float]:
    """A fit to twelve kinds of steps, and the rates up to 64 workers that follow from it."""
    fit_s, rates_s = [], []
    for _ in range(rounds):
        analyzer = Analyzer()
        analyzer.expect("job", Batches(128, 128, 4096, 32, 1024))
        for workers in (1, 2, 4, 8):
            for samples in (64, 128, 256):
                wait = 0.0 if workers == 1 else 0.02 + 0.05 * (workers > 4)
                analyzer.observe(
                    "job", workers, -(-workers // 4), samples, 0.05 + samples / 1500 + wait, wait, 1.0, 9.0
                )
        began = time.process_time()
        speed = analyzer.speed("job")
        fitted = time.process_time()
        speed.rates(64, 4)
        fit_s.append(fitted - began)
        rates_s.append(time.process_time() - fitted)
    return statistics.median(fit_s), statistics.median(rates_s)


def report(found: dict[str, Any], slow: list[str]) -> None:
    for what, took in found["seconds"].items():
        print(f"{what:42} {1000 * took:9.1f} ms")
    for what, (misses, says) in found["missed"].items():
        print(f"{what:42} misses {100 * misses:.4f} % of the best, and says at most {100 * says:.4f} %")
    print(f"a fit: {1000 * found['fit_s']:.1f} ms; then the rates of one job: {1000 * found['rates_s']:.1f} ms")
    print("\n".join(slow) or "within the limits")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--sizes",
        nargs="+",
        default=["100x200", "1000x1000", "1000x2000", "10000x10000", "10000x20000"],
        help="JOBSxDEVICES: whole nodes of 8",
    )
    parser.add_argument("--largest", type=int, default=64, help="workers of a job")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found: dict[str, Any] = {"seconds": {}, "missed": {}}
    slow = []
    for size in arguments.sizes:
        jobs, devices = map(int, size.split("x"))
        view = cluster(jobs, devices, arguments.largest)
        for name, policy in POLICIES.items():
            what = f"{name}, {jobs} jobs, {devices} devices"
            took = found["seconds"][what] = decision(policy, view, arguments.rounds)
            limit = LIMITS_S.get(jobs) if name != "gavel" else None
            if limit is not None and took > limit:
                slow.append(f"{what}: {took:.3f} s, and may take {limit:g} s")
        if jobs <= 1_000:
            found["missed"][f"near, {jobs} jobs, {devices} devices"] = missed(view)
    found["fit_s"], found["rates_s"] = fits(arguments.rounds)
    if arguments.json:
        print(json.dumps(found))
    else:
        report(found, slow)
    return 1 if slow else 0


if __name__ == "__main__":
    raise SystemExit(main())
