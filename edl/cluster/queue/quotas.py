"""Bound how many devices a user has at once.

Owns: the rule. A policy does not see a job that its user has no room for, and sees the other jobs with the room that is
left to them: so no policy need know of quotas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec

from edl.cluster.views import JobView


def within_quotas(
    jobs: Iterable[JobView], quotas: Mapping[str, int], held: Mapping[str, int] = MappingProxyType({})
) -> tuple[JobView, ...]:
    """Return the jobs that fit into their users' quotas, with their sizes bounded. Running jobs come first, then higher
    priorities, then the first that came. `held`: devices of a user's workers that are to leave, and of jobs that are
    over, saved or preempted.
    """
    jobs = tuple(jobs)
    if not quotas:
        return jobs
    room = {user: max(0, most - held.get(user, 0)) for user, most in quotas.items()}
    let_in: dict[str, JobView] = {}
    for job in sorted(jobs, key=lambda job: (not job.running, -job.priority, job.submitted)):
        if job.user not in room:
            let_in[job.name] = job
        elif job.smallest <= room[job.user]:
            room[job.user] -= job.smallest
            let_in[job.name] = job
    for name, job in let_in.items():
        if job.user in room:  # the first jobs get the room left beyond the smallest sizes of all
            largest = min(job.largest, job.smallest + room[job.user])
            room[job.user] -= largest - job.smallest
            request = max(job.smallest, min(job.request, largest))
            let_in[name] = msgspec.structs.replace(job, largest=largest, request=request)
    return tuple(let_in[job.name] for job in jobs if job.name in let_in)
