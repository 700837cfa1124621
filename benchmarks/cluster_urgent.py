"""An urgent job arrives on a cluster that is full: seconds until it trains, and what the others lose by it.

    python -m benchmarks.cluster_urgent
    python -m benchmarks.cluster_urgent --rounds 1 --variants rigid

Two jobs of two workers each hold all devices when a job of higher priority is submitted that needs two. In `shrink`
each of the two can do with one worker; in `rigid` none can, and one is sent away and goes on later. `empty` is the same
urgent job on a cluster that has nothing else to do: what its workers need to boot. Times are from the moment in which
`edl submit` is typed.

Verdict: the urgent job trains while the others are not over; in `shrink` none is sent away, in `rigid` exactly one is,
once, and goes on; by what all workers wrote down (docs/audit.md) no step of any job was made twice or is missing, and
every sample was trained exactly once.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.real_cluster import LOOK_S, Line, RealCluster
from edl.cluster.queue.queue_entries import JobEntry, JobPhase
from edl.core.audit.kept_steps import WorkerAudit, lives
from edl.protocol.audit_lines import Committed
from edl.trainer.data.audit_files import read

SLOTS = 4
VARIANTS = {"empty": (), "shrink": ("broad", "wide"), "rigid": ("broad", "wide")}
STEPS_BEFORE = 10  # that the others have made when it arrives
LONGEST_S = 300.0  # of one round


class Round(NamedTuple):
    granted_s: float  # its devices are its own
    trains_s: float  # its first step is made
    goes_on_s: float | None  # from the end of the urgent job to the next step of the one that was sent away
    sent_away: int
    twice: int
    missing: int
    faults: tuple[str, ...]


def others(variant: str, number: int, epochs: int, step_s: float) -> list[Line]:
    least = 2 if variant == "rigid" else 1
    return [Line(f"{name}{number}", 0, "digits", 2, least, 2, epochs, step_s) for name in VARIANTS[variant]]


def played(cluster: RealCluster, variant: str, number: int, options: argparse.Namespace) -> Round:
    there = others(variant, number, options.epochs, options.step_time)
    for line in there:
        cluster.submit(line)
    _until(cluster, lambda _: all(len(cluster.steps(line.name)) >= STEPS_BEFORE for line in there))
    urgent = Line(f"urgent{number}", 0, "digits", 2, 2, 2, options.urgent_epochs, options.step_time, priority=5)
    typed = time.time()
    cluster.submit(urgent)
    lines = [*there, urgent]
    _until(cluster, lambda jobs: all(jobs[line.name].over for line in lines))
    return _judged(cluster, variant, typed, there, urgent)


def _judged(cluster: RealCluster, variant: str, typed: float, there: Sequence[Line], urgent: Line) -> Round:
    jobs, lines = cluster.jobs(), [*there, urgent]
    job, faults = jobs[urgent.name], []
    first, last = (cluster.steps(urgent.name)[at][0] for at in (0, -1))
    ended = [jobs[line.name].ended or 0.0 for line in there]
    lost = [lost_steps(read(cluster.audit(line.name))) for line in lines]
    away = [line for line in there if jobs[line.name].preemptions]
    sent_away = sum(jobs[line.name].preemptions for line in lines)
    faults += [f"{line.name} is {_shown(jobs[line.name])}" for line in lines if not _finished(jobs[line.name])]
    faults += [f"{line.name}: not each sample once" for line in lines if not cluster.exactly_once(line)]
    if ended and min(ended) < first:
        faults.append("the cluster was no longer full when it began: take more --epochs")
    if (sent_away, len(away)) != ((1, 1) if variant == "rigid" else (0, 0)):
        faults.append(f"{sent_away} were sent away")
    twice, missing = sum(one for one, _ in lost), sum(one for _, one in lost)
    if twice or missing:
        faults.append("steps were lost")
    granted = next(event.ts for event in job.story if event.kind == "job_starting")
    goes_on = [min((at for at, _, _ in cluster.steps(line.name) if at > last), default=0.0) - last for line in away]
    return Round(
        granted - typed, first - typed, goes_on[0] if goes_on else None, sent_away, twice, missing, tuple(faults)
    )


def lost_steps(audits: Sequence[WorkerAudit]) -> tuple[int, int]:
    """Steps that were made more than once, in two rings or two lives; and those that no worker has made."""
    twice = missing = 0
    for life in lives(audits):
        lines = [line for audit in life.audits for line in audit.lines if isinstance(line, Committed)]
        made = Counter(step for _, step in {(line.generation, line.step) for line in lines})
        twice += made.total() - len(made) + life.steps - life.kept
        missing += len(set(range(1, life.steps + 1)) - set(made))
    return twice, missing


def _finished(job: JobEntry) -> bool:
    return job.phase is JobPhase.FINISHED


def _shown(job: JobEntry) -> str:
    return f"{job.phase.value}: {job.reason}"


def _until(cluster: RealCluster, condition: Callable[[dict[str, JobEntry]], bool]) -> None:
    began = time.monotonic()
    while not condition(cluster.jobs()):
        if time.monotonic() - began > LONGEST_S:
            shown = ", ".join(f"{job.name} {_shown(job)}" for job in cluster.jobs().values())
            raise SystemExit(f"after {LONGEST_S:g} s: {shown}")
        time.sleep(LOOK_S)


def tried(variant: str, options: argparse.Namespace) -> list[Round]:
    """On a cluster of its own."""
    found = []
    with tempfile.TemporaryDirectory(prefix="edl-urgent-") as folder:
        cluster = RealCluster(Path(folder))
        cluster.edl("cluster", "start", "--nodes", f"localhost:{SLOTS}", "--policy", options.policy)
        try:
            for number in range(1, options.rounds + 1):
                load = os.getloadavg()[0]
                one = played(cluster, variant, number, options)
                print(f"  {variant} {number}: trains after {one.trains_s:.1f} s, load {load:.1f} when it began"
                      f"{''.join(f'; {fault}' for fault in one.faults)}", flush=True)  # fmt: skip
                found.append(one)
        finally:
            cluster.edl("cluster", "stop", "--now")
    return found


def show(rounds: dict[str, list[Round]]) -> bool:
    head = ("variant", "has its devices", "trains", "the other goes on", "sent away", "steps twice", "missing")
    print(f"\n| {' | '.join(head)} |")
    print("|" + " --- |" * len(head))
    for variant, those in rounds.items():
        after = [one.goes_on_s for one in those if one.goes_on_s is not None]
        counts = (
            sum(one.sent_away for one in those),
            sum(one.twice for one in those),
            sum(one.missing for one in those),
        )
        times = (_spread([one.granted_s for one in those]), _spread([one.trains_s for one in those]), _spread(after))
        print(f"| {variant} | {' | '.join(times)} | {' | '.join(map(str, counts))} |")
    return not any(one.faults for those in rounds.values() for one in those)


def _spread(seconds: Sequence[float]) -> str:
    if not seconds:
        return ""
    return f"{statistics.median(seconds):.1f} s ({', '.join(f'{one:.1f}' for one in seconds)})"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--policy", default="fifo")
    parser.add_argument("--epochs", type=int, default=20, help="of each of the others")
    parser.add_argument("--urgent-epochs", type=int, default=2)
    parser.add_argument("--step-time", type=float, default=0.1, help="seconds")
    options = parser.parse_args()
    print(f"{options.rounds} rounds each on {SLOTS} slots of {os.cpu_count()} cores", flush=True)
    good = show({variant: tried(variant, options) for variant in options.variants})
    print(f"\nverdict: {'good' if good else 'BAD'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
