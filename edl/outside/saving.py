"""What is asked from outside of a job that is saved: a checkpoint now, and to go.

Owns: waiting for what comes of it. Does not own: the request (`edl.outside.client`).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Final

from edl.errors import JobFailed, StoreUnavailable, TimedOut
from edl.outside.client import LOOK_S, JobClient
from edl.protocol.job import OVER, Status

PREEMPT_S: Final = 25.0  # of the half minute that machines which are taken away usually leave
SLACK_S: Final = 60.0  # beyond its deadline, for a leader to come and to tell the end
PREEMPTED: Final = "it was preempted"


async def saved(job: JobClient) -> str:
    """The path of a checkpoint that was begun after this, once it is durable. Raises JobFailed, PeerError."""
    request = secrets.token_hex(8)
    while True:
        told = await job.checkpoint(request)
        if told.path:
            return told.path
        await asyncio.sleep(LOOK_S)


async def preempted(
    job: JobClient, reason: str, deadline_s: float, kept: Callable[[], Status | None] = lambda: None
) -> Status:
    """The job once it is over. `kept`: what its launcher, if it is here, knows of it; that outlives the coordinator,
    which may be gone as soon as the job. Raises JobFailed, PeerError, TimedOut.
    """
    await job.preempt(reason, deadline_s)
    clock = asyncio.get_running_loop().time
    until = clock() + deadline_s + SLACK_S
    while True:
        try:
            status = await job.status()
        except StoreUnavailable:
            if (found := kept()) is None:
                raise
            status = found
        if status.state in OVER:
            break
        if clock() > until:
            raise TimedOut(f"job {status.job} is not over {deadline_s + SLACK_S:g} s after it was asked to go")
        await asyncio.sleep(LOOK_S)
    if status.state.value != "preempted":
        raise JobFailed(f"job {status.job} was over before it could be preempted: it {status.state.value}")
    return status
