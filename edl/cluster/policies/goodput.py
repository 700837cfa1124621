"""`goodput`: the sizes and batches with which all jobs together come closest to their ends.

A job's speed-up at a size is its progress there over its progress with its fewest workers, where progress counts what a
sample of a large batch is still worth. The policy chooses the sizes with the largest sum of

    weight x ((speed-up x exp(-doubt x sigma) x kept) ^ power) / power

- `power` below 1 makes the second device of one job worth less than the first one of another.
- `kept` is the share of its time that a job keeps, if it is changed: the cost of a change, over the time until the
  next one. What a larger size gains is missed for as long as the job's newest workers took to come. A job is expected
  to run for as long again as it has run, as lifetimes with heavy tails do, and for `settle_s` at least, but not beyond
  the steps that its script says are left. A change must be worth `hesitation` beyond its cost, so that none is made for
  nothing.
- the weight falls with the device-seconds that a job has had, for the same reason: a job that has had much needs much.
- `doubt` discounts speeds that were not measured; `reach` bounds how far a job may go beyond the sizes it has tried.

The largest jobs stand first in a decision, so that they are placed before small ones have taken a part of each node.

Where not all jobs fit with their fewest workers: a job that has waited longer than `patience` times its running time
comes first, by the ratio of both, in powers of `TURN`. The wait of a running job counts `TURN` times: it has run for
half as long again as before when another job takes its place, so jobs do not just take turns. Then come the jobs with
the least service, by powers of 4, for the same reason.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import numpy as np

from edl.cluster.knapsack import Floats, Offer, admitted, best, looked_up, offer
from edl.cluster.views import Aim, Allotment, ClusterDecision, ClusterView, JobView

TINY_S: Final = 1e-6
TURN: Final = 1.5  # jobs that have waited too long are compared by powers of it


class Goodput(msgspec.Struct, frozen=True):
    """The policy. Its fields are its parameters."""

    power: float = 0.85
    doubt: float = 0.3
    reach: int = 4
    settle_s: float = 150.0
    hesitation: float = 0.02
    young: float = 0.1  # how much less a job weighs once its service is several times `service_s`
    service_s: float = 3600.0
    patience: float = 4.0
    fixed_batch: bool = False

    def __post_init__(self) -> None:
        if not (0 < self.power <= 1 and self.reach >= 2 and self.settle_s > 0 and self.service_s > 0):
            raise ValueError("power is above 0 and at most 1, reach 2 or more, settle_s and service_s above 0")
        if not (self.doubt >= 0 and 0 <= self.hesitation < 1 and self.young >= 0 and self.patience > 0):
            raise ValueError("doubt and young are 0 or more, hesitation 0 or more and below 1, patience above 0")

    def decide(self, cluster: ClusterView, now: float) -> ClusterDecision:
        within = admitted(self._by_claim(cluster.jobs, now), cluster.devices)
        if not within:
            return ClusterDecision({})
        offered = offer(cluster, within, self.reach, Aim.GIVEN if self.fixed_batch else Aim.PROGRESS)
        chosen = best(offered.sizes, self.worth(offered), cluster.devices)
        sizes = offered.sizes[np.arange(len(within)), chosen.columns].tolist()
        largest_first = sorted(zip(within, offered.rates, sizes, strict=True), key=lambda one: -one[2])
        return ClusterDecision(
            {
                job.name: Allotment(size, int(rates.batch[size - 1]), reason(job, size, rates.progress))
                for job, rates, size in largest_first
            }
        )

    def _by_claim(self, jobs: Sequence[JobView], now: float) -> Iterator[JobView]:
        """Sort jobs: overdue ones first, then those with less service, then running ones; of equal ones the first that
        came.
        """
        jobs = sorted(jobs, key=operator.attrgetter("submitted", "name"))
        waited = np.array([job.waited_by(now) for job in jobs])
        ran, service = np.array([job.ran for job in jobs]), np.array([job.service for job in jobs])
        borne = self.patience * np.maximum(ran, self.settle_s)
        runs = np.array([job.running for job in jobs], dtype=bool)
        overdue = np.ceil(np.log(np.maximum(np.where(runs, TURN, 1.0) * waited / borne, 1.0)) / math.log(TURN))
        level = np.floor(np.log(1 + service / self.service_s) / math.log(4))
        order = np.lexsort((~runs, level, -overdue))
        return (jobs[at] for at in order.tolist())

    def worth(self, offered: Offer) -> Floats:
        jobs = offered.jobs
        progress = looked_up(offered.sizes, [rates.progress for rates in offered.rates])
        sigma = looked_up(offered.sizes, [rates.sigma for rates in offered.rates])
        fewest = np.array([rates.progress[job.smallest - 1] for job, rates in zip(jobs, offered.rates, strict=True)])
        speed_up = progress * np.exp(-self.doubt * sigma) / np.maximum(fewest, 1e-300)[:, None]
        kept = kept_share(offered, self.settle_s, self.hesitation)
        service = np.array([job.service for job in jobs])
        weight = (self.service_s / (self.service_s + service)) ** self.young
        return np.asarray(weight[:, None] * (speed_up * kept) ** self.power / self.power)


def kept_share(offered: Offer, settle_s: float, hesitation: float) -> Floats:
    """Return the share of its time that a job keeps if it is given another size: 1 for its present size. A larger size
    brings nothing more than the present one until its newcomers train.
    """
    jobs = offered.jobs
    ahead = settle_s + np.array([job.ran for job in jobs])
    ends = np.array([math.inf if job.left_s is None else job.left_s for job in jobs])
    ahead = np.maximum(np.minimum(ahead, ends), TINY_S)[:, None]
    present = np.array([job.workers for job in jobs])[:, None]
    boot = np.array([job.boot_s for job in jobs])[:, None]
    # While newcomers come, the others train on: what they make is not lost.
    missed = boot * np.maximum(0.0, 1 - present / np.maximum(offered.sizes, 1))
    cost = np.array([job.change_s for job in jobs])[:, None] + missed
    # A job that starts loses the same time at any size.
    changed = (1 - hesitation) * np.maximum(ahead - cost, 0) / ahead
    return np.where((offered.sizes == present) | (present == 0), 1.0, changed)


def reason(job: JobView, size: int, curve: Floats) -> str:
    """Explain a change in words; return "" if there is none."""
    if size == job.workers:
        return ""
    if not job.running:
        return f"starts with {size // job.each}"
    faster = curve[size - 1] / max(float(curve[job.workers - 1]), 1e-300) if job.workers <= len(curve) else 0.0
    return f"from {job.workers // job.each} to {size // job.each} workers, {faster:.2f} times as fast"


class ThroughputOptimizer(msgspec.Struct, frozen=True):
    """`dp`: the optimizer of arXiv 2006.13878: the sizes with the largest sum of speed-ups in throughput.

    A job's worth at a size is its throughput there, at the batch of its range with the most samples in a second, over
    its throughput with its fewest workers. Beyond the paper: a job may need several workers or none at all; sizes above
    a node are whole nodes; a change of size counts what it costs over the time that the job is expected to go on, as
    long as it has run and `settle_s` at least, and must be worth `hesitation` beyond that; `power` below 1 favours jobs
    that have few (1: the paper's sum); no job goes beyond `reach` times the most workers that it has had, unless its
    speed is known there.

    Jobs are taken in the order of their submission as long as their fewest workers fit; the others wait.
    """

    """The policy. Its fields are its parameters."""

    power: float = 1.0
    reach: int = 4
    settle_s: float = 300.0
    hesitation: float = 0.02
    fixed_batch: bool = False

    def __post_init__(self) -> None:
        if not (0 < self.power <= 1 and self.reach >= 2 and self.settle_s > 0 and 0 <= self.hesitation < 1):
            raise ValueError("power is above 0 and at most 1, reach 2 or more, settle_s above 0, hesitation below 1")

    def decide(self, cluster: ClusterView, now: float) -> ClusterDecision:  # noqa: ARG002 - all times are in the view
        first_come = sorted(cluster.jobs, key=lambda job: (job.submitted, job.name))
        within = admitted(first_come, cluster.devices)
        if not within:
            return ClusterDecision({})
        offered = offer(cluster, within, self.reach, Aim.GIVEN if self.fixed_batch else Aim.THROUGHPUT)
        chosen = best(offered.sizes, self.worth(offered), cluster.devices)
        sizes = offered.sizes[np.arange(len(within)), chosen.columns].tolist()
        return ClusterDecision(
            {
                job.name: Allotment(size, int(rates.batch[size - 1]), reason(job, size, rates.throughput))
                for job, rates, size in zip(within, offered.rates, sizes, strict=True)
            }
        )

    def worth(self, offered: Offer) -> Floats:
        throughput = looked_up(offered.sizes, [rates.throughput for rates in offered.rates])
        fewest = np.array(
            [rates.throughput[job.smallest - 1] for job, rates in zip(offered.jobs, offered.rates, strict=True)]
        )
        speed_up = throughput / np.maximum(fewest, 1e-300)[:, None]
        return np.asarray((speed_up * kept_share(offered, self.settle_s, self.hesitation)) ** self.power / self.power)
