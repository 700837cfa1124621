"""The coordinator of a launch: a named one, tried before any worker starts, or a local one of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from edl.config import Settings
from edl.coordination.child_server import ChildServer
from edl.coordination.coordinator_settings import Coordinator
from edl.coordination.local_coordinator import choose, start_local
from edl.coordination.store import connect
from edl.errors import ConfigError
from edl.host import credentials
from edl.host.network import LOOPBACK
from edl.launch.job_records import Folder

REACH_TIMEOUT_S = 4.0
RESTART_PAUSE_S = 1.0


@asynccontextmanager
async def coordinator_of(
    settings: Settings, folder: Folder, address: str = LOOPBACK, *, say: Callable[[str], None] = lambda _: None
) -> AsyncIterator[Coordinator]:
    """Enter with the named coordinator, or with a local one that listens at `address`.

    `say` gets a line if its kind is not the usual one. Raises ConfigError if the coordinator cannot be reached or
    started.
    """
    named = credentials.coordinator_of(settings)
    if named is not None:
        store = await connect(named, settings.session_timeout_s, connect_timeout_s=REACH_TIMEOUT_S)
        await store.close()
        yield named
        return
    alone = address == LOOPBACK and settings.zookeeper_port is None
    chosen = choose(settings.local_coordinator, alone=alone)
    if chosen.because:
        say(chosen.because)
    server = await start_local(
        chosen.kind,
        folder.path,
        port=settings.zookeeper_port,
        digest=credentials.digest_of(settings.secret()),
        address=address,
    )
    keeping = asyncio.create_task(_keep_alive(server, say))
    try:
        yield server.coordinator
    finally:
        keeping.cancel()
        await asyncio.wait({keeping})
        await server.stop()


async def _keep_alive(server: ChildServer, say: Callable[[str], None]) -> None:
    """Restart a server that crashed, with all its data; training does not stop meanwhile (I11)."""
    said = ""
    while True:
        await server.wait_exit()
        try:
            await server.restart()
            said = ""
            say("the local coordinator had ended and is started again: sessions, and training, go on")
        except ConfigError as error:
            if str(error) != said:
                said = str(error)
                say(said)
            await asyncio.sleep(RESTART_PAUSE_S)
