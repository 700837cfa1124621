"""Adjust a policy's decision: jobs shrink before any is preempted, and priorities count.

A policy may know no priorities, and may stop one job to start another where it would be enough that a third shrinks. So
a decision is adjusted twice:

1. *priority*: a job takes workers from jobs of lower priority, up to the number that its owner asked for, as long as
   these have more than their fewest; to begin at all it takes, if need be, all of a job's workers: the lowest priority
   first, and of equal ones the job that came last.
2. *rescue*: a job that runs, and is to have no worker, keeps its fewest where others have more than their own fewest,
   if that is enough.

Owns: these two rules. Does not own: the policy's decision, nor placement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edl.cluster.views import Allotment, ClusterView, JobView


def yielded(cluster: ClusterView, allotments: Mapping[str, Allotment]) -> dict[str, Allotment]:
    """Return the allotments as they are carried out. Their sum stays within the devices of the cluster."""
    found = Shares(cluster, allotments)
    by_priority = sorted(cluster.jobs, key=lambda job: (-job.priority, job.submitted))
    for job in by_priority:
        found.prefer(job)
    for job in by_priority:
        if job.running and not found.workers(job):
            found.rescue(job)
    return found.allotments


class Shares:
    """The workers of each job while they are redistributed, counted by their devices."""

    def __init__(self, cluster: ClusterView, allotments: Mapping[str, Allotment]) -> None:
        self.allotments = {name: one for name, one in allotments.items() if one.workers}
        self._places = {job.name: place for place, job in enumerate(cluster.jobs)}
        self._jobs = cluster.jobs
        self._lowest = self._lowest_of_all()
        self._free = cluster.devices - sum(one.workers for one in self.allotments.values())

    def workers(self, job: JobView) -> int:
        return self.allotments[job.name].workers if job.name in self.allotments else 0

    def _holders(self) -> list[JobView]:
        """Return the jobs that have workers: at most as many as devices, however many wait."""
        return [self._jobs[place] for place in sorted(self._places[name] for name in self.allotments)]

    def _lowest_of_all(self) -> int:
        """Return the lowest priority of a job that has workers: a job of no higher priority takes from no other."""
        return min((job.priority for job in self._holders()), default=0)

    def rescue(self, job: JobView) -> None:
        others = [one for one in self._holders() if one.name != job.name and one.priority <= job.priority]
        if self._surplus(others) + self._free >= job.smallest:
            self._shrink(others, job.smallest, f"others shrink before {job.name} is sent away")
            self._give(job, job.smallest, "others have shrunk so that it can go on")

    def prefer(self, job: JobView) -> None:
        if job.priority <= self._lowest:
            return
        lower = [one for one in self._holders() if one.priority < job.priority]
        has = self.workers(job)
        if not lower or has >= job.request or has + self._free + sum(map(self.workers, lower)) < job.smallest:
            return
        self._shrink(lower, job.request - has, f"job {job.name} of priority {job.priority} is to train")
        for one in sorted(lower, key=lambda one: (one.priority, -one.submitted)):
            if has + self._free >= job.smallest:
                break
            if self.workers(one):
                self._free += self.allotments.pop(one.name).workers
        more = job.whole(min(job.request - has, self._free))
        if more:
            self._give(job, more, f"its priority of {job.priority} is higher than that of others")
        self._lowest = self._lowest_of_all()

    def _surplus(self, jobs: Sequence[JobView]) -> int:
        return sum(max(0, self.workers(job) - job.smallest) for job in jobs)

    def _shrink(self, jobs: Sequence[JobView], until_free: int, reason: str) -> None:
        """Take one worker after the other: from the lowest priority, there from the job with the most beyond its
        fewest.
        """
        while self._free < until_free:
            beyond = [job for job in jobs if self.workers(job) > job.smallest]
            if not beyond:
                return
            one = min(beyond, key=lambda job: (job.priority, job.smallest - self.workers(job), -job.submitted))
            before = self.allotments[one.name]
            self.allotments[one.name] = Allotment(before.workers - one.each, before.batch, reason)
            self._free += one.each

    def _give(self, job: JobView, more: int, reason: str) -> None:
        before = self.allotments.get(job.name, Allotment(0, job.running_batch if job.running else job.batch))
        self.allotments[job.name] = Allotment(before.workers + more, before.batch, reason)
        self._free -= more
