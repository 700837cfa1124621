"""Requests to a job that take a while: save it now, save it and end it, or leave a host.

Owns: waiting for the result. Does not own: the requests' messages (`edl.outside.job_client`).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Final

from edl.errors import JobFailed, StoreUnavailable, TimedOut
from edl.outside.job_client import LOOK_S, JobClient
from edl.protocol.leader_messages import AskMigrate
from edl.protocol.migration_record import Room
from edl.protocol.record import OVER, Status


async def moved(
    job: JobClient, host: str, to: tuple[Room, ...], within_s: float, seen: Callable[[Status], object] = lambda _: None
) -> None:
    """Wait until no worker is left on `host`. Each status goes to `seen`. Newcomers have `within_s` seconds to be
    ready; 0 means the time that a boot may take. Raises ScaleRejected with the reason when the migration fails,
    JobFailed, PeerError.
    """
    asked = AskMigrate(secrets.token_hex(8), host, to, within_s)
    while not await job.migrate(asked):
        seen(await job.status())
        await asyncio.sleep(LOOK_S)


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
