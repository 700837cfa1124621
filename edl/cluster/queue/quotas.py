"""How many devices a user may have at once.

Owns: the rule. A policy does not see a job that its user has no room for, and sees the others with what room is left
to them: so no policy need know of quotas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec

from edl.cluster.views import JobView


def within_quotas(
    jobs: Iterable[JobView], quotas: Mapping[str, int], held: Mapping[str, int] = MappingProxyType({})
) -> tuple[JobView, ...]:
    """Sort jobs into their order. Who runs comes first, then higher priorities, then who came first. `held`: devices
    of a user's workers that are to go, and of jobs that are over, saved or sent away.
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
        if job.user in room:  # the first ones have what is left beyond the fewest of all
            largest = min(job.largest, job.smallest + room[job.user])
            room[job.user] -= largest - job.smallest
            request = max(job.smallest, min(job.request, largest))
            let_in[name] = msgspec.structs.replace(job, largest=largest, request=request)
    return tuple(let_in[job.name] for job in jobs if job.name in let_in)
