"""Serve jobs in their order: a job that has begun runs to its end, with the workers that its owner asked for.

`fifo` starts jobs in their order, and none before the job in front of it has begun. `backfill` passes over a job that
does not fit, so that smaller ones behind it may run; once a job has waited for `patience_s`, no job behind it begins
before it does. Jobs of higher priority stand in front of others.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from edl.cluster.views import Allotment, ClusterDecision, ClusterView, JobView


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
            more = max(0, min(job.request - job.workers, free))  # a node that failed has cost it some
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
