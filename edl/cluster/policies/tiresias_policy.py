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

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from edl.cluster.views import Allotment, ClusterDecision, ClusterView, JobView

Notes = dict[str, float]
SETTLE_S = 60.0  # a job that begins to run falls to no other queue before, nor before twice what the change cost
BEGUN = {"queue": 0.0, "base": 0.0, "ran": 0.0, "waited": 0.0, "urgent": 0.0, "due": 0.0}
AGES = 1e18  # seconds: when a job that need not starve would
NEAR = 1e-6  # a service this close to a limit has crossed it


class Queues(NamedTuple):
    """The limits by which jobs change their queues."""

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
    """Return the job's notes, updated for the time that it has run or waited since."""
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
