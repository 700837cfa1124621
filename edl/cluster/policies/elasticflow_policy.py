"""`elasticflow`: deadlines (Gu et al., ASPLOS 2023). It must be told how much work is left.

- **Minimum satisfactory share.** Jobs with a deadline stand in the order of their deadlines. Each reserves, from now to
  its deadline, the smallest share with which it ends in time: up to so many workers in each slot of time, as far as
  those before it have left any. That share falls as a job gets on, which then holds its workers for longer; where not
  all promises are kept so, each job keeps to the share that it was planned with before, and they are.
- **Admission.** A job is admitted when it is seen first, if with it all that are admitted end in time. The others, and
  jobs without a deadline, run with what is left, and no promise is made that leaves the first of them none. What was
  decided is in the notes and does not change; a job that was admitted and falls behind, because changes cost time or it
  is slower than was known, keeps its place until its deadline has passed. Plans are made in slots of time, and anew at
  each decision: a promise may be missed by about a slot.
- **Marginal gain.** Devices that are left now go, step by step, to the job whose next size is worth most for a device:
  how much faster it is, over how fast it is. Jobs that were not admitted start before others get more.

Sizes are the job's smallest one, doubled again and again, and its largest.
"""

from __future__ import annotations

import heapq
import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from edl.cluster.views import Aim, Allotment, ClusterDecision, ClusterView, JobView, Rates

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
ADMITTED = "admitted"  # note of a job with a deadline: 1, or 0
SHARE = "share"  # note of one that was admitted: what it was planned with last


class Slots(msgspec.Struct, frozen=True):
    """The time from now on, cut into slots, with the devices that are not reserved in each."""

    begins: Floats
    lasting: Floats
    free: Ints


class _Plan(msgspec.Struct):
    """`now`: the present workers of admitted jobs."""

    now: dict[str, int]
    shares: dict[str, int]  # the satisfactory share planned with; 0: no share ends in time
    in_time: bool


class ElasticFlow(msgspec.Struct, frozen=True):
    """The policy. Its fields are its parameters."""

    slots: int = 64  # into so many slots the time until the last deadline is cut
    margin: float = 0.02  # of a job's work: by so much the plan ends ahead of its deadline
    worth: float = 0.0  # the least gain in speed for which one device more is given, as a share of a device's speed

    def __post_init__(self) -> None:
        if not (self.slots >= 1 and self.margin >= 0 and 0 <= self.worth < 1):
            raise ValueError("slots must be 1 or more, margin 0 or more, worth from 0 to below 1")

    def decide(self, cluster: ClusterView, now: float) -> ClusterDecision:
        if not cluster.jobs:
            return ClusterDecision({})
        devices, each = cluster.devices, cluster.devices_per_node
        rates = {
            job.name: job.speed.rates(max(job.whole(min(job.largest, devices)), job.smallest), each, Aim.GIVEN)
            for job in cluster.jobs
        }
        ordered = sorted((job for job in cluster.jobs if job.deadline is not None), key=_by_deadline)
        unsaid = [job.name for job in ordered if job.left is None]
        if unsaid:
            raise ValueError(f"elasticflow must know how much work is left, and {unsaid[0]} does not say")
        promised = {job.name for job in ordered if job.notes.get(ADMITTED) == 1.0}
        new = sorted((job for job in ordered if ADMITTED not in job.notes), key=_by_arrival)
        others = [job for job in cluster.jobs if job.deadline is None or job.notes.get(ADMITTED) == 0.0]
        kept = min(others, key=_by_arrival).smallest if others else 0
        for job in new:
            together = promised | {job.name}
            if self._planned(ordered, together, rates, devices - kept, now).in_time:
                promised = together
        plan = self._planned(ordered, promised, rates, devices, now)
        sizes = self._raised(cluster, rates, plan.now)
        return ClusterDecision(
            {job.name: _given(job, sizes[job.name], plan.now) for job in cluster.jobs if sizes[job.name]},
            {job.name: _notes(job, promised, plan) for job in ordered},
        )

    def _planned(
        self, ordered: list[JobView], within: set[str], rates: dict[str, Rates], devices: int, now: float
    ) -> _Plan:
        """Plan by the smallest shares, or by the shares of the plan before if not all jobs end in time with the
        smallest.
        """
        plan = self._plan(ordered, within, rates, devices, now, {})
        if plan.in_time:
            return plan
        before = {job.name: int(job.notes.get(SHARE, 0)) for job in ordered}
        return self._plan(ordered, within, rates, devices, now, before)

    def _plan(
        self,
        ordered: list[JobView],
        within: set[str],
        rates: dict[str, Rates],
        devices: int,
        now: float,
        least: dict[str, int],
    ) -> _Plan:
        """Plan by the smallest satisfactory shares, each of at least `least` workers of that job."""
        there = [(job, job.deadline - now) for job in ordered if job.name in within and job.deadline is not None]
        slots = self._cut([until for _, until in there if until > 0], devices)
        plan = _Plan({}, {}, in_time=True)
        for job, until in there:
            if until <= 0:
                plan.in_time = plan.in_time and ADMITTED in job.notes
                continue
            found, share = _reserve(job, until, rates[job.name], slots, self.margin, least.get(job.name, 0))
            slots.free[:] -= found
            plan.now[job.name], plan.shares[job.name] = int(found[0]), share
            plan.in_time = plan.in_time and share > 0
        return plan

    def _cut(self, ends: list[float], devices: int) -> Slots:
        """Cut the time evenly to the last deadline, and at each deadline, so that no slot is in part too late for a
        job.
        """
        edges = np.unique(np.concatenate([np.linspace(0, max(ends, default=1.0), self.slots + 1), np.array(ends)]))
        return Slots(edges[:-1], np.diff(edges), np.full(len(edges) - 1, devices, dtype=np.int64))

    def _raised(self, cluster: ClusterView, rates: dict[str, Rates], shares: dict[str, int]) -> dict[str, int]:
        """Give the devices left now to jobs, by marginal gain."""
        sizes = {job.name: shares.get(job.name, 0) for job in cluster.jobs}
        left = cluster.devices - sum(sizes.values())
        heap: list[tuple[float, float, str, JobView]] = []

        def offer(job: JobView) -> None:
            larger = [size for size in _sizes(job, rates[job.name]) if size > sizes[job.name]]
            if larger and (gain := _gain(rates[job.name], sizes[job.name], larger[0])) > self.worth:
                heapq.heappush(heap, (-gain, job.submitted, job.name, job))

        for job in cluster.jobs:
            offer(job)
        while heap and left:
            job = heapq.heappop(heap)[-1]
            size = next(size for size in _sizes(job, rates[job.name]) if size > sizes[job.name])
            if size - sizes[job.name] <= left:
                left -= size - sizes[job.name]
                sizes[job.name] = size
                offer(job)
        return sizes


def _by_deadline(job: JobView) -> tuple[float, float, str]:
    return job.deadline if job.deadline is not None else math.inf, job.submitted, job.name


def _by_arrival(job: JobView) -> tuple[float, str]:
    return job.submitted, job.name


def _sizes(job: JobView, rates: Rates) -> list[int]:
    """Return the sizes in which the job may run and is faster than in all smaller ones."""
    most = len(rates.progress)
    doubled = [job.smallest * 2**k for k in range(most.bit_length()) if job.smallest * 2**k < most]
    rising: list[int] = []
    for size in [*doubled, most]:
        if not rising or rates.progress[size - 1] > rates.progress[rising[-1] - 1]:
            rising.append(size)
    return rising


def _gain(rates: Rates, size: int, larger: int) -> float:
    """Return the gain in speed for each device more, relative to the speed for each device; a waiting job comes
    first.
    """
    if size == 0:
        return math.inf
    before, after = float(rates.progress[size - 1]), float(rates.progress[larger - 1])
    return (after / before - 1) * size / (larger - size) if before > 0 else math.inf


def _reserve(job: JobView, until: float, rates: Rates, slots: Slots, margin: float, least: int) -> tuple[Ints, int]:
    """Return the job's workers in each slot, and the share: the smallest one of at least `least` workers with which the
    job ends in time. If none does, the workers are those of the largest share, and the share is 0.
    """
    assert job.left is not None
    work, sizes = job.left * (1 + margin), _sizes(job, rates)
    speeds = np.concatenate([[0.0], rates.progress])
    in_time = slots.begins + slots.lasting <= until * (1 + 1e-12)
    found = np.zeros(len(slots.free), dtype=np.int64)
    for share in [size for size in sizes if size >= least] or sizes[-1:]:
        may = np.array([0, *[size for size in sizes if size <= share]])
        found = np.where(in_time, may[np.searchsorted(may, slots.free, side="right") - 1], 0)
        seconds = slots.lasting.copy()
        if found[0] != job.workers:
            seconds[0] -= min(job.change_s, seconds[0])
        done = np.cumsum(speeds[found] * seconds)
        if done[-1] >= work:
            found[int(np.argmax(done >= work)) + 1 :] = 0
            return found, share
    return found, 0


def _notes(job: JobView, promised: set[str], plan: _Plan) -> dict[str, float]:
    if job.name not in promised:
        return {ADMITTED: 0.0}
    return {ADMITTED: 1.0, SHARE: float(plan.shares.get(job.name) or job.notes.get(SHARE, 0.0))}


def _given(job: JobView, size: int, shares: dict[str, int]) -> Allotment:
    if size == job.workers:
        return Allotment(size, job.batch)
    least, has = shares.get(job.name, 0) // job.each, size // job.each
    why = f"it needs {least} to end in time" if has == least else f"{has - least} beyond the {least} that it must have"
    return Allotment(size, job.batch, why)
