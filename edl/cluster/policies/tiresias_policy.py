"""Tiresias (NSDI 2019): the least attained service first, in two dimensions: workers times seconds.

Jobs begin in the first queue, and fall to the next one when their service crosses a limit. All of a queue stand before
those of the next. In this order each job that still fits has all workers that its owner asked for; a job that does not
fit is passed over. A job that has waited `promote` times as long as it had run returns to the first queue, with a
service of 0. With `promote` 0, as published figures have it, it never does, and may starve; 8 is a good value.

Inside a queue, `order` says which is first: `arrival` (the first that came to the queue), or `running-first` (those
that run, with which equals do not push each other out, and those that have waited so long as said above, in the first
queue as if they had run to its end; then the first that came). `rank` `gittins` puts those first that are most likely
to end for the service that is spent on them, by `sample`: services of jobs like these, in device-seconds.

The notes about a job are its queue, when it came there, its service and seconds of running at its last promotion,
and how long it had waited when it ran the last time, and whether it has waited too long since.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from edl.cluster.views import Aim, Allotment, ClusterDecision, ClusterView, JobView, Provenance

Notes = dict[str, float]
SETTLE_S = 60.0  # a job that begins to run falls to no other queue before, nor before twice what the change cost
BEGUN = {"queue": 0.0, "base": 0.0, "ran": 0.0, "waited": 0.0, "urgent": 0.0, "due": 0.0}
AGES = 1e18  # seconds: when a job that need not starve would
NEAR = 1e-6  # a service this close to a limit has crossed it


class Queues(NamedTuple):
    limits: Sequence[float]
    promote: float
    passed_s: float = AGES  # seconds after which a job that waits in the first queue is urgent, at the latest


class Tiresias(msgspec.Struct, frozen=True):
    limits: tuple[float, ...] = (57_600.0,)  # 16 device-hours, as Pollux compares itself to
    promote: float = 0.0
    order: Literal["arrival", "running-first"] = "arrival"
    rank: Literal["las", "gittins"] = "las"
    sample: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check(self.limits, self.promote)
        if self.rank == "gittins" and (len(self.sample) < 2 or min(self.sample) <= 0):
            raise ValueError("rank=gittins needs sample=…, services of two jobs or more in device-seconds above 0")

    def decide(self, cluster: ClusterView, now: float) -> ClusterDecision:
        notes = {job.name: noted(job, Queues(self.limits, self.promote), now) for job in cluster.jobs}
        free = cluster.devices
        found: dict[str, Allotment] = {}
        for job in self.ranked(cluster.jobs, notes):
            if job.request <= free:
                found[job.name] = Allotment(job.request, reason=f"its turn in queue {notes[job.name]['queue']:.0f}")
                free -= job.request
        sizes = {name: allotment.workers for name, allotment in found.items()}
        return ClusterDecision(
            found, notes, next_look(cluster.jobs, notes, sizes, Queues(self.limits, self.promote), now)
        )

    def ranked(self, jobs: Sequence[JobView], notes: dict[str, Notes]) -> list[JobView]:
        index = {job.name: 0.0 for job in jobs}
        if self.rank == "gittins":
            sample = np.sort(np.array(self.sample))
            index = {job.name: gittins(sample, job.service - notes[job.name]["base"]) for job in jobs}
        first = self.order == "running-first"

        def rank(job: JobView) -> tuple[float, ...]:
            known = notes[job.name]
            return (
                known["queue"],
                -job.priority,
                first and not (job.running or known["urgent"]),
                -index[job.name],
                known["since"],
            )

        return sorted(jobs, key=rank)


def check(limits: Sequence[float], promote: float) -> None:
    """Raises ValueError."""
    if not limits or list(limits) != sorted(set(limits)) or limits[0] <= 0:
        raise ValueError(
            f"limits={','.join(f'{limit:g}' for limit in limits)}: must be above 0, and each above the last"
        )
    if not promote >= 0:
        raise ValueError(f"promote={promote:g}: must be 0 or more")


def noted(job: JobView, queues: Queues, now: float) -> Notes:
    # The notes of a job that only waits on stay the same.
    if not job.workers and now + NEAR < job.notes.get("due", now):
        return job.notes
    known = job.notes or {**BEGUN, "since": job.submitted}
    if job.running:
        known = {**known, "waited": job.waited_by(now), "urgent": 0.0, "due": 0.0}
    queue = int(known["queue"])
    crossed = queue
    while crossed < len(queues.limits) and job.service - known["base"] >= queues.limits[crossed] - NEAR:
        crossed += 1
    if crossed > queue and now >= _settled(job, job.workers, queues.promote, now):
        known = {**known, "queue": float(crossed), "since": now}
    if job.running:
        return known
    rest = _rest(job, known, queues, now)
    if rest > 0:
        return {**known, "due": now + rest}
    if not known["queue"]:
        return {**known, "urgent": 1.0, "due": AGES}
    back = {"queue": 0.0, "since": now, "base": job.service, "ran": job.ran, "waited": job.waited_by(now)}
    return {**back, "urgent": 1.0, "due": AGES}


def _rest(job: JobView, known: Notes, queues: Queues, now: float) -> float:
    """Return the seconds until the job starves, if it waits for so long."""
    if not queues.promote or known["urgent"]:
        return AGES
    return _patience(job, known, queues) - (job.waited_by(now) - known["waited"])


def _settled(job: JobView, size: int, promote: float, now: float) -> float:
    """Return when a job that runs with `size` workers may fall to the next queue."""
    # Without this bound, jobs that fall and return would only take turns.
    if not promote or not size:
        return now
    begun = job.changed if job.workers == size and job.changed is not None else now
    return begun + max(SETTLE_S, 2 * job.change_s)


def _patience(job: JobView, known: Notes, queues: Queues) -> float:
    """Return for how many seconds a job may wait: in the first queue as if it had run until its end there, and no
    longer than `passed_s`.
    """
    if known["queue"]:
        return queues.promote * (job.ran - known["ran"]) - NEAR
    return min(queues.promote * queues.limits[0] / job.request, queues.passed_s) - NEAR


def next_look(
    jobs: Sequence[JobView],
    notes: dict[str, Notes],
    sizes: dict[str, int],
    queues: Queues,
    now: float,
) -> float | None:
    """Return when the next job changes its queue, if the jobs have workers as in `sizes`."""
    times = []
    for job in jobs:
        known = notes[job.name]
        queue, size = int(known["queue"]), sizes.get(job.name, 0)
        if size and queue < len(queues.limits):
            crosses = (queues.limits[queue] + known["base"] - job.service) / size
            times.append(max(now + crosses, _settled(job, size, queues.promote, now)))
        elif not size and queues.promote:
            times.append(now + _rest(job, known, queues, now) if job.running else known["due"])
    first = min(times, default=AGES)
    return max(now + NEAR, first) if first < AGES else None


def gittins(sample: NDArray[np.float64], service: float) -> float:
    """Return the best chance to end, for each unit of service spent on the job, over all services that may be spent."""
    left = sample[sample > service] - service
    if not len(left):
        return 0.0
    ends = np.arange(1, len(left) + 1)
    spent = np.cumsum(left) + (len(left) - ends) * left
    return float(np.max(ends / spent))


Floats = NDArray[np.float64]
TWICE: Final = 2  # growth bound, in times the workers that a job has had, where its speed is not measured


class ElasticTiresias(msgspec.Struct, frozen=True):
    """Elastic-Tiresias (arXiv 1909.11985): Tiresias, whose jobs shrink when many wait, and grow when devices are idle.

    1. The jobs stand in Tiresias' order, and have the workers that their owners asked for, as far as these fit. A job
       that runs with fewer workers keeps as many as it had. A job of the first queue that has waited for `passed_s`,
       and `promote` times as long as that queue's running jobs, is passed over no more: no later job of that queue
       runs instead.
    2. Compaction: when more than `pending` jobs wait, running jobs that have fallen from the first queue shrink to
       `shrink` times their request, and the devices that this frees start jobs that wait.
    3. Expansion: idle devices go where they add most, as a share of the job's speed for each device: a job that scales
       well does not take all. A job that waits may begin with `shrink` times its request. Gains are looked for one,
       two, four and a node's devices ahead, as real curves dip between. A device that adds less than `floor` of what
       one worker does stays idle. Where a job's speed was not measured, it grows to twice the workers that it has had,
       at most.

    Jobs do not flap: a worker that a job has counts `keep` times as much as one that it would get, and a job whose
    workers have changed grows again only after `dwell_s`.
    """

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
        return max(job.smallest, -job.whole(-math.ceil(self.shrink * job.request - 1e-9)))

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
        more = (job.each, 2 * job.each, 4 * job.each, job.whole(self._node - size % self._node))
        return (*filter(None, more), *present)

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
        return f"less than its {job.request // job.each} workers, as others wait"
    return "what its owner asked for" if size == job.request else "devices are idle, and it gains by them"
