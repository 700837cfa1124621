"""`dp`: the optimizer of arXiv 2006.13878: the sizes with the largest sum of speed-ups in throughput.

A job's worth at a size is its throughput there, at the batch of its range with the most samples in a second, over its
throughput with its fewest workers. Beyond the paper: a job may need several workers or none at all; sizes above a node
are whole nodes; a change of size counts what it costs over the time that the job is expected to go on, as long as it
has run and `settle_s` at least, and must be worth `hesitation` beyond that; `power` below 1 favours jobs that have few
(1: the paper's sum); no job goes beyond `reach` times the most workers that it has had, unless its speed is known
there.

Jobs are taken in the order of their submission as long as their fewest workers fit; the others wait.
"""

from __future__ import annotations

import msgspec
import numpy as np

from edl.cluster.candidates import Floats, Offer, admitted, looked_up, offer
from edl.cluster.knapsack import best
from edl.cluster.policies.goodput import kept_share, reason
from edl.cluster.views import Aim, Allotment, ClusterDecision, ClusterView


class ThroughputOptimizer(msgspec.Struct, frozen=True):
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
