"""A request that a job leaves a host.

Owns: waiting for the result. Does not own: the request's message (`edl.outside.job_client`).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

from edl.outside.job_client import LOOK_S, JobClient
from edl.protocol.leader_messages import AskMigrate
from edl.protocol.migration_record import Room
from edl.protocol.record import Status


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
