"""Optimus (EuroSys 2018): each further device goes to the job whose remaining time it shortens most.

An oracle: it must be told how much work each job has left. Batches are those that the owners asked for. All jobs first
get their fewest workers, in their order; those for which none are left wait.
"""

from __future__ import annotations

import heapq
import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from edl.cluster.views import Aim, Allotment, ClusterDecision, ClusterView, JobView


class Optimus(msgspec.Struct, frozen=True):
    def decide(self, cluster: ClusterView, now: float) -> ClusterDecision:  # noqa: ARG002 - nothing here is of the hour
        free = cluster.devices
        sizes: dict[str, int] = {}
        for job in sorted(cluster.jobs, key=lambda job: -job.priority):
            if job.smallest <= free:
                sizes[job.name] = job.smallest
                free -= job.smallest
        jobs = [job for job in cluster.jobs if job.name in sizes]
        seconds = [_seconds(job, cluster) for job in jobs]
        gains = [(-_gain(seconds[at], sizes[job.name], job.each), at) for at, job in enumerate(jobs)]
        heapq.heapify(gains)
        while free and gains and gains[0][0] < 0:
            _, at = gains[0]
            name, each = jobs[at].name, jobs[at].each
            if each > free:
                heapq.heappop(gains)
                continue
            sizes[name] += each
            free -= each
            heapq.heapreplace(gains, (-_gain(seconds[at], sizes[name], each), at))
        smallest_first = sorted(jobs, key=lambda job: sizes[job.name])
        return ClusterDecision(
            {job.name: Allotment(sizes[job.name], reason="gains most by them") for job in smallest_first}
        )


def _seconds(job: JobView, cluster: ClusterView) -> NDArray[np.float64]:
    """Return the seconds that the job would still take with 1, 2, … workers."""
    most = max(job.smallest, min(job.largest, cluster.devices))
    progress = job.speed.rates(most, cluster.devices_per_node, Aim.GIVEN).progress
    left = job.left if job.left is not None else job.ran * float(progress[max(job.workers, 1) - 1])
    return np.divide(left, progress, out=np.full(most, math.inf), where=progress > 0)


def _gain(seconds: NDArray[np.float64], size: int, each: int) -> float:
    """Return the seconds that one more worker saves, for each of its devices."""
    larger = size + each
    if larger > len(seconds) or not math.isfinite(seconds[larger - 1]):
        return 0.0
    return float(seconds[size - 1] - seconds[larger - 1]) / each
