"""The shortest remaining time first: an oracle, as it must be told how much work each job has left.

Each job that still fits has all workers that its owner asked for; a job that does not fit is passed over. A job that
has waited `promote` times as long as it had run, or as its run takes, stands before all others; `promote` 0: it may
starve.
"""

from __future__ import annotations

import math

import msgspec

from edl.cluster.views import Aim, Allotment, ClusterDecision, ClusterView, JobView


class ShortestFirst(msgspec.Struct, frozen=True):
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
