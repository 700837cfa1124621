"""The coordinator of a launch: the one that was named, tried before any worker starts, or a local one of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from edl.config import Settings
from edl.coordination import zookeeper
from edl.coordination.server import LocalServer
from edl.coordination.settings import Coordinator
from edl.errors import ConfigError
from edl.host import credentials
from edl.host.network import LOOPBACK
from edl.launch.records import Folder

REACH_TIMEOUT_S = 4.0
RESTART_PAUSE_S = 1.0


@asynccontextmanager
async def coordinator_of(settings: Settings, folder: Folder, address: str = LOOPBACK) -> AsyncIterator[Coordinator]:
    """One of our own listens at `address`. Raises ConfigError with one line if it cannot be reached or started."""
    named = credentials.coordinator_of(settings)
    if named is not None:
        store = await zookeeper.connect(named, settings.session_timeout_s, connect_timeout_s=REACH_TIMEOUT_S)
        await store.close()
        yield named
        return
    server = await LocalServer.start(
        folder.zookeeper,
        port=settings.zookeeper_port,
        digest=credentials.digest_of(settings.secret()),
        address=address,
    )
    keeping = asyncio.create_task(_keep_alive(server))
    try:
        yield server.coordinator
    finally:
        keeping.cancel()
        await asyncio.wait({keeping})
        await server.stop()


async def _keep_alive(server: LocalServer) -> None:
    """A server that crashed comes back with all its data; training does not stop meanwhile (I11)."""
    while True:
        await server.wait_exit()
        try:
            await server.restart()
        except ConfigError:
            await asyncio.sleep(RESTART_PAUSE_S)
