"""Serve jobs in their order: a job that has begun runs to its end, with the workers that its owner asked for.

`fifo` starts jobs in their order, and none before the job in front of it has begun. `backfill` passes over a job that
does not fit, so that smaller ones behind it may run; once a job has waited for `patience_s`, no job behind it begins
before it does. Jobs of higher priority stand in front of others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from edl.cluster.views import Aim, Allotment, ClusterDecision, ClusterView, JobView


class Fifo(msgspec.Struct, frozen=True):
    def decide(self, cluster: ClusterView, now: float) -> ClusterDecision:
        return _served(cluster, _in_order(cluster.jobs), now, patience_s=0.0)


class Backfill(msgspec.Struct, frozen=True):
    patience_s: float = 3600.0

    def __post_init__(self) -> None:
        if not self.patience_s >= 0:
            raise ValueError(f"patience_s={self.patience_s:g}: must be 0 or more")

    def decide(self, cluster: ClusterView, now: float) -> ClusterDecision:
        decision = _served(cluster, _in_order(cluster.jobs), now, self.patience_s)
        waited = [job.waited_by(now) for job in cluster.jobs if job.name not in decision.allotments]
        patience = [now - seconds + self.patience_s for seconds in waited if seconds < self.patience_s]
        return msgspec.structs.replace(decision, look_again=min(patience, default=None))


def _in_order(jobs: Iterable[JobView]) -> list[JobView]:
    return sorted(jobs, key=lambda job: -job.priority)


def _served(cluster: ClusterView, jobs: list[JobView], now: float, patience_s: float) -> ClusterDecision:
    free = cluster.devices - sum(job.workers for job in jobs)
    found: dict[str, Allotment] = {}
    for job in jobs:
        if job.running:
            more = max(0, job.whole(min(job.request - job.workers, free)))  # a node that failed has cost it some
            found[job.name] = Allotment(job.workers + more, reason="it has all of its workers again" if more else "")
            free -= more
    for job in jobs:
        if job.name in found:
            continue
        if job.request <= free:
            found[job.name] = Allotment(job.request, reason="it is its turn")
            free -= job.request
        elif job.waited_by(now) >= patience_s and job.request <= cluster.devices:
            break
    return ClusterDecision(found)


class ShortestFirst(msgspec.Struct, frozen=True):
    """The shortest remaining time first: an oracle, as it must be told how much work each job has left.

    Each job that still fits has all workers that its owner asked for; a job that does not fit is passed over. A job
    that has waited `promote` times as long as it had run, or as its run takes, stands before all others; `promote` 0:
    it may starve.
    """

    promote: float = 0.0

    def __post_init__(self) -> None:
        if not self.promote >= 0:
            raise ValueError(f"promote={self.promote:g}: must be 0 or more")

    def decide(self, cluster: ClusterView, now: float) -> ClusterDecision:
        remaining = {job.name: remaining_s(job, job.request, cluster.devices_per_node) for job in cluster.jobs}

        def rank(job: JobView) -> tuple[float, ...]:
            left = remaining[job.name]
            waited = job.waited_by(now)
            starves = self.promote > 0 and waited >= self.promote * (job.ran + left)
            return (-job.priority, not starves, -waited if starves else left, not job.running)

        free = cluster.devices
        found = {}
        for job in sorted(cluster.jobs, key=rank):
            if job.request <= free:
                found[job.name] = Allotment(job.request, reason=f"{remaining[job.name]:.0f} s are left of it")
                free -= job.request
        return ClusterDecision(found)


def remaining_s(job: JobView, workers: int, devices: int) -> float:
    """Return the seconds left with `workers` workers at the job's own batch. If the work left is unknown, assume as
    much time again as the job has run.
    """
    progress = float(job.speed.rates(job.largest, devices, Aim.GIVEN).progress[workers - 1])
    if job.left is None:
        return job.ran
    return job.left / progress if progress > 0 else math.inf
