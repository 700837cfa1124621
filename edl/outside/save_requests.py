"""Requests to a job with checkpoints: save it now, or save it and end it.

Owns: waiting for the result. Does not own: the requests' messages (`edl.outside.job_client`).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Final

from edl.errors import JobFailed, StoreUnavailable, TimedOut
from edl.outside.job_client import LOOK_S, JobClient
from edl.protocol.record import OVER, Status

PREEMPT_S: Final = 25.0  # a machine that is reclaimed usually gets half a minute of notice
SLACK_S: Final = 60.0  # beyond the deadline, for a new leader to be elected and to record the end
PREEMPTED: Final = "it was preempted"


async def saved(job: JobClient) -> str:
    """Save the job now; return the checkpoint's path once it is durable. Raises JobFailed, PeerError."""
    request = secrets.token_hex(8)
    while True:
        told = await job.checkpoint(request)
        if told.path:
            return told.path
        await asyncio.sleep(LOOK_S)


async def preempted(
    job: JobClient, reason: str, deadline_s: float, kept: Callable[[], Status | None] = lambda: None
) -> Status:
    """Save the job and end it; return its last status. `kept` returns the status that a launcher on this machine has
    recorded, because the coordinator may be gone as soon as the job is. Raises JobFailed, PeerError, TimedOut.
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
