"""Real jobs on a real cluster of this machine, under one policy after the other, and what the simulator says of them.

    python -m benchmarks.cluster
    python -m benchmarks.cluster --jobs 6 --slots 4 --gap 8 --policies fifo elastic-tiresias --results out/cluster.json

The same jobs come at the same times under each policy: digits and the language model, of different lengths and limits,
and arrivals with exponential gaps. Steps wait for a while in place of computing (`cluster_worker.py`), so that jobs
scale on a machine with few cores. Each worker records what it trains. With `--results` what was measured is kept in a
file, and a policy that is there already is not run again: the whole can be had in pieces.

Verdict: all jobs finish, every sample of every job is trained exactly once, no device is held at the end, and the
simulator's forecast (`cluster_forecast.py`) of mean and p95 completion time, makespan and utilization is within
`--within` of what was measured.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.cluster_facts import JobFacts, facts_of
from benchmarks.cluster_forecast import forecast
from benchmarks.real_cluster import LOOK_S, Line, RealCluster

POLICIES = ("fifo", "tiresias", "elastic-tiresias", "goodput")
PARAMETERS = {
    "tiresias": {"limits": "120"},
    "elastic-tiresias": {"limits": "120", "dwell_s": "10", "pending": "2"},
    "goodput": {"settle_s": "30"},
}
EPOCHS = (2, 2, 3, 3, 4, 4, 6, 8, 12)  # most jobs are short, and most of the work is in long ones
STEPS_S = (0.06, 0.1, 0.15)
LONGEST_S = 900.0  # of one policy
FIGURES = ("mean_s", "p95_s", "makespan_s", "held")


class Measured(msgspec.Struct, frozen=True):
    """One policy, or what is forecast of it."""

    mean_s: float
    p95_s: float
    makespan_s: float
    held: float  # share of the devices' time in which they were a job's
    training: float  # share in which they trained


class Trial(msgspec.Struct, frozen=True):
    """One policy's, as it went."""

    policy: str
    workload: str
    measured: Measured
    changes: int
    preemptions: int
    finished: int
    exactly_once: bool
    leaked: int
    facts: list[JobFacts]


def workload(jobs: int, slots: int, gap_s: float, seed: int) -> list[Line]:
    chance = random.Random(seed)
    at, found = 0.0, []
    for number in range(jobs):
        np = min(slots, chance.choice((1, 1, 2, 2, 3)))
        sizes = (np, max(1, np // 2), min(slots, 2 * np))
        model = ("digits", "sonnets")[number % 2]
        found.append(Line(f"job{number}", at, model, *sizes, chance.choice(EPOCHS), chance.choice(STEPS_S)))
        at += chance.expovariate(1 / gap_s)
    return found


def played(policy: str, lines: list[Line], slots: int, name: str) -> Trial:
    """On a cluster of its own."""
    with tempfile.TemporaryDirectory(prefix="edl-cluster-") as folder:
        cluster = RealCluster(Path(folder))
        more = [word for key, value in PARAMETERS.get(policy, {}).items() for word in ("--set", f"{key}={value}")]
        cluster.edl("cluster", "start", "--nodes", f"localhost:{slots}", "--policy", policy, *more)
        try:
            _submit_all(cluster, lines)
            return _judged(cluster, policy, lines, slots, name)
        finally:
            cluster.edl("cluster", "stop", "--now")


def _submit_all(cluster: RealCluster, lines: list[Line]) -> None:
    """Each at its time, and wait for all of them."""
    began, coming = time.monotonic(), list(lines)
    while True:
        while coming and time.monotonic() - began >= coming[0].after_s:
            line = coming.pop(0)
            cluster.submit(line)
            sizes = f"{line.np} workers, {line.least} to {line.most}"
            print(f"  {time.monotonic() - began:5.0f} s  {line.name} comes: {line.model}, {sizes}", flush=True)
        if not coming:
            left = [name for name, job in cluster.jobs().items() if not job.over]
            if not left:
                return
            if time.monotonic() - began > LONGEST_S:
                raise SystemExit(f"after {LONGEST_S:g} s these are not over: {', '.join(left)}")
        time.sleep(LOOK_S)


def _judged(cluster: RealCluster, policy: str, lines: list[Line], slots: int, name: str) -> Trial:
    accounts, jobs = cluster.accounts(), cluster.jobs()
    times = [job["ended"] - job["submitted"] for job in accounts]
    makespan = max(job["ended"] for job in accounts) - min(job["submitted"] for job in accounts)
    measured = Measured(
        mean_s=statistics.fmean(times),
        p95_s=float(np.percentile(times, 95)),
        makespan_s=makespan,
        held=sum(job["device_s"] for job in accounts) / (makespan * slots),
        training=sum(job["training_s"] for job in accounts) / (makespan * slots),
    )
    good = [line for line in lines if jobs[line.name].phase.value == "finished"]
    for line in set(lines) - set(good):
        print(f"  {line.name} is {jobs[line.name].phase.value}: {jobs[line.name].reason}", flush=True)
    return Trial(
        policy,
        name,
        measured,
        changes=sum(job["changes"] for job in accounts),
        preemptions=sum(job["preemptions"] for job in accounts),
        finished=len(good),
        exactly_once=len(good) == len(lines) and all(cluster.exactly_once(line) for line in good),
        leaked=sum(len(node.held) for node in cluster.status().nodes) + len(cluster.processes()),
        facts=[facts_of(line, jobs[line.name], cluster.steps(line.name)) for line in good],
    )


def foretold(trial: Trial, slots: int) -> Measured:
    found = forecast(trial.policy, PARAMETERS.get(trial.policy, {}), trial.facts, slots)
    assert found.mean is not None
    assert found.p95 is not None
    return Measured(found.mean, found.p95, found.makespan, found.utilization, found.training)


def errors(measured: Measured, told: Measured) -> dict[str, float]:
    return {name: getattr(told, name) / getattr(measured, name) - 1 for name in FIGURES}


def show(trials: list[Trial], slots: int, jobs: int, within: float) -> bool:
    print(f"\n{jobs} jobs on {slots} slots of {os.cpu_count()} cores\n")
    head = ("policy", "", "mean", "p95", "makespan", "held", "train", "changes", "sent away", "exactly once", "leaked")
    print(f"| {' | '.join(head)} |")
    print("|" + " --- |" * len(head))
    good = True
    for trial in trials:
        told = foretold(trial, slots)
        off = errors(trial.measured, told)
        whole = trial.finished == jobs and trial.exactly_once and not trial.leaked
        once = f"{trial.finished} of {jobs}" if trial.exactly_once else "NO"
        print(f"| {_row((trial.policy, 'measured'), trial.measured)} | {trial.changes} | {trial.preemptions} "
              f"| {once} | {trial.leaked} |")  # fmt: skip
        print(f"| {_row(('', 'forecast'), told)} | | | | |")
        print(f"| | error | {' | '.join(f'{off[name]:+.0%}' for name in FIGURES)} | | | | | |")
        good = good and whole and max(map(abs, off.values())) <= within
    return good


def _row(head: tuple[str, str], one: Measured) -> str:
    times = (f"{seconds:.0f} s" for seconds in (one.mean_s, one.p95_s, one.makespan_s))
    return " | ".join((*head, *times, f"{one.held:.0%}", f"{one.training:.0%}"))


def known(path: Path | None) -> list[Trial]:
    if path is None or not path.exists():
        return []
    return msgspec.json.decode(path.read_bytes(), type=list[Trial])


def keep(path: Path | None, trials: list[Trial]) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(trials)))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=24)
    parser.add_argument("--slots", type=int, default=5)
    parser.add_argument("--gap", type=float, default=6.0, help="mean seconds from one arrival to the next")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--policies", nargs="+", default=list(POLICIES))
    parser.add_argument("--results", type=Path, help="keep what was measured there, and go on with what is there")
    parser.add_argument("--within", type=float, default=0.15, help="how far off the forecast may be")
    options = parser.parse_args()
    lines = workload(options.jobs, options.slots, options.gap, options.seed)
    name = f"{options.jobs} jobs, {options.slots} slots, gap {options.gap:g}, seed {options.seed}"
    there: dict[tuple[str, str], Trial] = {(one.policy, one.workload): one for one in known(options.results)}
    for policy in options.policies:
        if (policy, name) in there:
            continue
        print(f"{policy}:", flush=True)
        there[policy, name] = played(policy, lines, options.slots, name)
        keep(options.results, list(there.values()))
    good = show([there[policy, name] for policy in options.policies], options.slots, options.jobs, options.within)
    print(f"\nverdict: {'good' if good else 'BAD'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
