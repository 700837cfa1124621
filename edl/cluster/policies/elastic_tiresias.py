"""Elastic-Tiresias (arXiv 1909.11985): Tiresias, whose jobs shrink when many wait, and grow when devices are idle.

1. The jobs stand in Tiresias' order, and have the workers that their owners asked for, as far as these fit. A job that
   runs with fewer workers keeps as many as it had. A job of the first queue that has waited for `passed_s`, and
   `promote` times as long as that queue's running jobs, is passed over no more: no later job of that queue runs
   instead.
2. Compaction: when more than `pending` jobs wait, running jobs that have fallen from the first queue shrink to
   `shrink` times their request, and the devices that this frees start jobs that wait.
3. Expansion: idle devices go where they add most, as a share of the job's speed for each device: a job that scales
   well does not take all. A job that waits may begin with `shrink` times its request. Gains are looked for one, two,
   four and a node's devices ahead, as real curves dip between. A device that adds less than `floor` of what one worker
   does stays idle. Where a job's speed was not measured, it grows to twice the workers that it has had, at most.

Jobs do not flap: a worker that a job has counts `keep` times as much as one that it would get, and a job whose workers
have changed grows again only after `dwell_s`.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from edl.cluster.policies.tiresias_policy import BEGUN, Queues, Tiresias, check, next_look, noted
from edl.cluster.views import Aim, Allotment, ClusterDecision, ClusterView, JobView, Provenance

Floats = NDArray[np.float64]
TWICE: Final = 2  # growth bound, in times the workers that a job has had, where its speed is not measured


class ElasticTiresias(msgspec.Struct, frozen=True):
    limits: tuple[float, ...] = (57_600.0,)
    promote: float = 8.0
    pending: int = 10
    shrink: float = 0.5
    floor: float = 0.02
    keep: float = 1.25
    dwell_s: float = 300.0
    passed_s: float = 1800.0

    def __post_init__(self) -> None:
        check(self.limits, self.promote)
        if not 0 < self.shrink <= 1:
            raise ValueError(f"shrink={self.shrink:g}: must be above 0, and 1 at most")
        if not (self.keep >= 1 and self.passed_s > 0 and self.dwell_s >= 0 and self.floor >= 0 and self.pending >= 0):
            raise ValueError("keep must be 1 or more; passed_s above 0; dwell_s, floor and pending 0 or more")

    def decide(self, cluster: ClusterView, now: float) -> ClusterDecision:
        queues = Queues(self.limits, self.promote, max(self.passed_s, self.promote * self._usual_wait(cluster, now)))
        notes = {job.name: noted(job, queues, now) for job in cluster.jobs}
        ranked = Tiresias(self.limits, self.promote, order="running-first").ranked(cluster.jobs, notes)
        sizes = self._requests(ranked, notes, cluster.devices)
        Expansion(self, cluster, ranked, sizes, now).run()
        found = {
            job.name: Allotment(sizes[job.name], reason=_reason(job, sizes[job.name]))
            for job in ranked
            if job.name in sizes
        }
        looks = [
            next_look(cluster.jobs, notes, sizes, queues, now),
            self._settled(cluster, now),
        ]
        return ClusterDecision(found, notes, min((look for look in looks if look is not None), default=None))

    def _usual_wait(self, cluster: ClusterView, now: float) -> float:
        """Return the mean seconds that running jobs of the first queue have waited: if all wait long, none of them is
        passed over.
        """
        waits = [job.waited_by(now) for job in cluster.jobs if job.running and not (job.notes or BEGUN)["queue"]]
        return sum(waits) / len(waits) if waits else 0.0

    def smallest(self, job: JobView) -> int:
        """Return the workers with which a job may begin, or to which it may shrink."""
        return max(job.smallest, math.ceil(self.shrink * job.request - 1e-9))

    def _requests(self, ranked: Sequence[JobView], notes: dict[str, dict[str, float]], devices: int) -> dict[str, int]:
        wanted = {job.name: self._wanted(job) for job in ranked}
        sizes = _fitting(ranked, wanted, devices)
        if len(ranked) - len(sizes) <= self.pending:
            return sizes
        for job in ranked:
            if notes[job.name]["queue"] and job.name in sizes:
                wanted[job.name] = self.smallest(job)
        return _fitting(ranked, wanted, devices)

    def _wanted(self, job: JobView) -> int:
        """Return the workers that a job claims."""
        # A running job with fewer workers than it asked for pushes no other job out to have them: idle devices are for
        # that.
        return min(job.request, max(job.workers, self.smallest(job))) if job.running else job.request

    def _settled(self, cluster: ClusterView, now: float) -> float | None:
        """Return when the next job may grow again."""
        times = [job.changed + self.dwell_s for job in cluster.jobs if job.changed is not None]
        return min((time for time in times if time > now), default=None)


def _fitting(ranked: Sequence[JobView], wanted: dict[str, int], free: int) -> dict[str, int]:
    sizes = {}
    for job in ranked:
        if wanted[job.name] <= free:
            sizes[job.name] = wanted[job.name]
            free -= wanted[job.name]
    return sizes


class Expansion:
    """Give idle devices away, one gain after the other. Changes `sizes`."""

    def __init__(
        self, rules: ElasticTiresias, cluster: ClusterView, ranked: Sequence[JobView], sizes: dict[str, int], now: float
    ) -> None:
        self._rules, self._ranked, self._sizes, self._now = rules, ranked, sizes, now
        self._node = cluster.devices_per_node
        self._free = cluster.devices - sum(sizes.values())
        self._speedups = [self._speedup(job, cluster.devices) for job in ranked] if self._free else []

    def run(self) -> None:
        gains: list[tuple[float, int, int]] = []
        for at in range(len(self._speedups)):
            self._push(gains, at)
        heapq.heapify(gains)
        while gains and self._free:
            _, at, step = heapq.heappop(gains)
            job = self._ranked[at]
            if step <= self._free:
                self._sizes[job.name] = self._sizes.get(job.name, 0) + step
                self._free -= step
            self._push(gains, at)

    def _push(self, gains: list[tuple[float, int, int]], at: int) -> None:
        gain, step = self._best(at)
        if step:
            heapq.heappush(gains, (-gain, at, step))

    def _best(self, at: int) -> tuple[float, int]:
        """Return the largest gain for each device, and how many devices it takes. Of equal gains take the fewest
        devices: once the job has these, another job may gain more by the next one.
        """
        job, speedup = self._ranked[at], self._speedups[at]
        size = self._sizes.get(job.name, 0)
        best = (0.0, 0)  # the step is negative, so that max() prefers the fewest devices
        for step in self._steps(job, size):
            if step > self._free or size + step >= len(speedup):
                continue
            more = float(speedup[size + step] - speedup[size]) / step
            if more < self._rules.floor or more <= 0:
                continue
            gain = more / max(1.0, float(speedup[size]))
            if size + step <= job.workers:
                gain *= self._rules.keep
            elif job.running and job.changed is not None and self._now - job.changed < self._rules.dwell_s:
                continue
            best = max(best, (gain, -step))
        return best[0], -best[1]

    def _steps(self, job: JobView, size: int) -> tuple[int, ...]:
        if not size:
            least = self._rules.smallest(job)
            return (least, job.request) if least < job.request else (least,)
        present = (job.workers - size,) if job.workers > size else ()
        return (1, 2, 4, self._node - size % self._node, *present)

    def _speedup(self, job: JobView, devices: int) -> Floats:
        rates = job.speed.rates(min(job.largest, devices), self._node, Aim.GIVEN)
        most = len(rates.progress)
        tried = max(job.request, TWICE * job.most_tried)
        while most > tried and rates.provenance[most - 1] in {Provenance.FITTED, Provenance.GUESSED}:
            most -= 1
        progress = rates.progress[:most]
        first = int(np.argmax(progress > 0))
        if progress[first] <= 0:
            return np.zeros(most + 1)
        return np.concatenate([[0.0], progress / progress[first] * (first + 1)])


def _reason(job: JobView, size: int) -> str:
    if size < job.request:
        return f"less than its {job.request} workers, as others wait"
    return "what its owner asked for" if size == job.request else "devices are idle, and it gains by them"
