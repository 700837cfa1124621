"""Conditions for more or fewer workers, after Or, Zhang and Freedman (MLSys 2020): pure arithmetic.

Both compare measurements of two sizes. `True` means that the larger size is worth its workers.
"""

from __future__ import annotations

from dataclasses import dataclass

from edl.policy.policy_job_view import View
from edl.policy.utility import Utility
from edl.protocol.measurements import Rate


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one condition for a pair of sizes."""

    passes: bool
    reason: str
    numbers: dict[str, float]


def scaling_efficiency(smaller: Rate, larger: Rate) -> float:
    """Return the throughput that each further worker adds, divided by the throughput per worker of the smaller size:
    ((R' - R) / d) / (R / k).
    """
    if smaller.samples_s <= 0:
        return 0.0
    added = (larger.samples_s - smaller.samples_s) / (larger.size - smaller.size)
    return added / (smaller.samples_s / smaller.size)


@dataclass(frozen=True, slots=True)
class Efficiency:
    """The condition that each further worker adds more than a share of a worker's throughput at the smaller size."""

    least: float

    def passes(self, _view: View, smaller: Rate, larger: Rate, /) -> bool:
        return scaling_efficiency(smaller, larger) > self.least

    def judge(self, _view: View, smaller: Rate, larger: Rate, /) -> Finding:
        found = scaling_efficiency(smaller, larger)
        passes = found > self.least
        return Finding(
            passes,
            f"from {smaller.size} to {larger.size} workers, each further one adds {found:.2f} of a worker, "
            f"{'more' if passes else 'not more'} than {self.least:g}",
            {"efficiency": found, "least": self.least, "from": smaller.size, "to": larger.size},
        )


@dataclass(frozen=True, slots=True)
class Worth:
    """The condition that an earlier end is worth more than its additional cost."""

    utility: Utility

    def passes(self, view: View, smaller: Rate, larger: Rate, /) -> bool:
        return self.judge(view, smaller, larger).passes

    def judge(self, view: View, smaller: Rate, larger: Rate, /) -> Finding:
        if view.samples_left is None:
            return Finding(False, "how many samples are left is not known, so no end can be told", {})
        ends = [_end_s(view, rate) for rate in (smaller, larger)]
        costs = [self._cost(view, rate) for rate in (smaller, larger)]
        gain = self.utility.at(ends[1]) - self.utility.at(ends[0])
        more = costs[1] - costs[0]
        passes = gain > more
        return Finding(
            passes,
            f"with {larger.size} workers instead of {smaller.size} the job ends after {ends[1]:.0f} s instead of "
            f"{ends[0]:.0f} s, which is worth {gain:.4g} and costs {more:.4g} more",
            {"gain": gain, "cost": more, "from": smaller.size, "to": larger.size},
        )

    def _cost(self, view: View, rate: Rate) -> float:
        """Return the cost of the rest of the job: the cost so far is equal for both sizes."""
        left_s = _end_s(view, rate) - view.now
        return left_s / 3600 * rate.size * self.utility.price


def _end_s(view: View, rate: Rate) -> float:
    left = view.samples_left or 0
    return view.now + (left / rate.samples_s if rate.samples_s > 0 else float("inf"))
