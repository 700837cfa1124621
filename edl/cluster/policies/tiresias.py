"""Tiresias (NSDI 2019): the least attained service first, in two dimensions: workers times seconds.

Jobs begin in the first queue, and fall to the next one when their service crosses a limit. All of a queue stand before
those of the next. In this order each job that still fits has all workers that its owner asked for; one that does not
is passed over. A job that has waited `promote` times as long as it had run returns to the first queue, with a service
of 0. With `promote` 0, as published figures have it, it never does, and may starve; 8 is a good value.

Inside a queue, `order` says which is first: `arrival` (the first that came to the queue), or `running-first` (those
that run, and then the first that came), with which equals do not push each other out. `rank` `gittins` puts those
first that are most likely to end for the service that is spent on them, by `sample`: services of jobs like these, in
device-seconds.

What is remembered of a job: its queue, when it came there, its service and seconds of running at its last promotion,
and how long it had waited when it ran the last time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from edl.cluster.decision import Allotment, Decision
from edl.cluster.views import ClusterView, JobView

Notes = dict[str, float]
NEAR = 1e-6  # a service that is so near to a limit has crossed it


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

    def decide(self, cluster: ClusterView, now: float) -> Decision:
        notes = {job.name: noted(job, self.limits, self.promote, now) for job in cluster.jobs}
        free = cluster.devices
        found: dict[str, Allotment] = {}
        for job in self.ranked(cluster.jobs, notes):
            if job.request <= free:
                found[job.name] = Allotment(job.request, reason=f"its turn in queue {notes[job.name]['queue']:.0f}")
                free -= job.request
        sizes = {name: allotment.workers for name, allotment in found.items()}
        return Decision(found, notes, next_look(cluster.jobs, notes, sizes, self.limits, self.promote, now))

    def ranked(self, jobs: Sequence[JobView], notes: dict[str, Notes]) -> list[JobView]:
        index = {job.name: 0.0 for job in jobs}
        if self.rank == "gittins":
            sample = np.sort(np.array(self.sample))
            index = {job.name: gittins(sample, job.service - notes[job.name]["base"]) for job in jobs}
        first = self.order == "running-first"

        def rank(job: JobView) -> tuple[float, ...]:
            known = notes[job.name]
            return (known["queue"], -job.priority, first and not job.running, -index[job.name], known["since"])

        return sorted(jobs, key=rank)


def check(limits: Sequence[float], promote: float) -> None:
    """Raises ValueError."""
    if not limits or list(limits) != sorted(set(limits)) or limits[0] <= 0:
        raise ValueError(
            f"limits={','.join(f'{limit:g}' for limit in limits)}: must be above 0, and each above the last"
        )
    if not promote >= 0:
        raise ValueError(f"promote={promote:g}: must be 0 or more")


def noted(job: JobView, limits: Sequence[float], promote: float, now: float) -> Notes:
    """What is to be remembered of it, now that it has run or waited some more."""
    known = job.notes or {"queue": 0.0, "since": job.submitted, "base": 0.0, "ran": 0.0, "waited": 0.0}
    queue = int(known["queue"])
    if job.running:
        known = {**known, "waited": job.waited}
        crossed = queue
        while crossed < len(limits) and job.service - known["base"] >= limits[crossed] - NEAR:
            crossed += 1
        return known if crossed == queue else {**known, "queue": float(crossed), "since": now}
    ran = job.ran - known["ran"]
    if promote and queue and ran > 0 and job.waited - known["waited"] >= promote * ran - NEAR:
        return {"queue": 0.0, "since": now, "base": job.service, "ran": job.ran, "waited": job.waited}
    return known


def next_look(
    jobs: Sequence[JobView],
    notes: dict[str, Notes],
    sizes: dict[str, int],
    limits: Sequence[float],
    promote: float,
    now: float,
) -> float | None:
    """When the next job changes its queue, with workers like these."""
    times = []
    for job in jobs:
        known = notes[job.name]
        queue, size = int(known["queue"]), sizes.get(job.name, 0)
        if size and queue < len(limits):
            times.append((limits[queue] + known["base"] - job.service) / size)
        elif not size and promote and queue and job.ran > known["ran"]:
            waited = 0.0 if job.running else job.waited - known["waited"]
            times.append(promote * (job.ran - known["ran"]) - waited)
    return now + max(NEAR, min(times)) if times else None


def gittins(sample: NDArray[np.float64], service: float) -> float:
    """The best chance to end, for each unit of service spent on it, over all services that may be spent."""
    left = sample[sample > service] - service
    if not len(left):
        return 0.0
    ends = np.arange(1, len(left) + 1)
    spent = np.cumsum(left) + (len(left) - ends) * left
    return float(np.max(ends / spent))
