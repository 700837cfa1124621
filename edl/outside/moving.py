"""A job that leaves a host, as it is asked for from outside.

Owns: waiting for what comes of it. Does not own: the request (`edl.outside.client`).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

from edl.outside.client import LOOK_S, JobClient
from edl.protocol.job import Status
from edl.protocol.messages import AskMigrate
from edl.protocol.moving import Room


async def moved(
    job: JobClient, host: str, to: tuple[Room, ...], within_s: float, seen: Callable[[Status], object] = lambda _: None
) -> None:
    """Until no worker is left on `host`. Each look is shown to `seen`. `within_s`: for the newcomers to be ready; 0: as
    long as a boot may take. Raises ScaleRejected with the reason when that will not be, JobFailed, PeerError.
    """
    asked = AskMigrate(secrets.token_hex(8), host, to, within_s)
    while not await job.migrate(asked):
        seen(await job.status())
        await asyncio.sleep(LOOK_S)
