"""`gavel`: max-min fairness over time (Narayanan et al., OSDI 2020), on devices of one type.

Each job runs with the workers that its owner asked for, or with none: its share is the part of the time in which it
runs. With one type of device the best of its linear programs has an answer without a solver: water filling. All jobs
get the same device-time for each unit of their weight, but none more than its whole request all the time; what it does
not need rises for the others.

The shares are kept by rounds. At the begin of one, jobs stand in the order of the share that is due over the share that
they had, those that had none first, and each that fits runs. Between two rounds a job keeps what it has; devices that
become free go to jobs that wait, in the same order. A job's share so far is the time that it ran of all its time, so a
job that waits moves up without end.
"""

from __future__ import annotations

import math
import operator

import msgspec
import numpy as np
from numpy.typing import NDArray

from edl.cluster.views import Allotment, ClusterDecision, ClusterView, JobView

Floats = NDArray[np.float64]
ROUND = "round"  # note of a job that runs: the round for which it was chosen


class Gavel(msgspec.Struct, frozen=True):
    """The policy. Its fields are its parameters."""

    round_s: float = 360.0
    priority_weight: float = 2.0  # how many times as much a priority of 1 weighs as one of 0

    def __post_init__(self) -> None:
        if not (self.round_s > 0 and self.priority_weight >= 1):
            raise ValueError("round_s must be above 0, priority_weight 1 or more")

    def decide(self, cluster: ClusterView, now: float) -> ClusterDecision:
        if not cluster.jobs:
            return ClusterDecision({})
        devices = cluster.devices
        needs = [_need(job, devices) for job in cluster.jobs]
        weights = self.priority_weight ** np.array([float(job.priority) for job in cluster.jobs])
        shares = (filled(np.array(needs, dtype=float), weights, devices) / needs).tolist()
        round_ = math.floor(now / self.round_s)

        def due(job: JobView, share: float) -> tuple[bool, float, float, str]:
            stays = job.running and job.notes.get(ROUND) == round_
            had = job.ran / (job.ran + job.waited_by(now)) if job.ran else 0.0
            return not stays, had / max(share, 1e-12), job.submitted, job.name

        allotments: dict[str, Allotment] = {}
        left = devices
        order = [
            (due(job, share), job, need, share) for job, need, share in zip(cluster.jobs, needs, shares, strict=True)
        ]
        for _, job, need, share in sorted(order, key=operator.itemgetter(0)):
            if need <= left:
                said = "" if job.workers == need else f"its turn: {share:.2f} of the time is its share"
                allotments[job.name] = Allotment(need, job.batch, said)
                left -= need
        notes = {name: {ROUND: float(round_)} for name in allotments}
        waits = len(allotments) < len(cluster.jobs)
        return ClusterDecision(allotments, notes, (round_ + 1) * self.round_s if waits else None)


def _need(job: JobView, devices: int) -> int:
    return max(job.smallest, job.whole(min(job.request, job.largest, devices)))


def filled(needs: Floats, weights: Floats, devices: float) -> Floats:
    """Return the device-time of each job: the same for each unit of weight, unless the job needs less."""
    if needs.sum() <= devices:
        return needs
    order = np.argsort(needs / weights, kind="stable")
    need, weight = needs[order], weights[order]
    # with the jobs of smaller need, which get all that they need
    before = np.concatenate([[0.0], np.cumsum(need)[:-1]])
    levels = (devices - before) / np.cumsum(weight[::-1])[::-1]
    first = int(np.argmax(levels <= need / weight))  # the first job that does not get all it needs
    return np.asarray(np.minimum(needs, weights * levels[first]))
