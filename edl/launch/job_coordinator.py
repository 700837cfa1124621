"""The coordinator of a launch: a named one, tried before any worker starts, or a local one of its own.

One that outlives a job may hold nodes of its former life, which are removed before the next life begins.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec

from edl.config import Settings
from edl.coordination.child_server import ChildServer
from edl.coordination.coordinator_settings import Coordinator
from edl.coordination.local_coordinator import choose, start_local
from edl.coordination.store import AccessDenied, Store, StoreRefused, connect
from edl.daemon import leftovers
from edl.daemon.leftovers import Leftovers, Standing
from edl.errors import ConfigError
from edl.host import credentials
from edl.host.credentials import coordinator_of, with_secret
from edl.host.network import LOOPBACK
from edl.launch.job_records import Folder, find
from edl.outside.job_client import JobClient
from edl.protocol.record import Status

REACH_TIMEOUT_S = 4.0
RESTART_PAUSE_S = 1.0


@asynccontextmanager
async def launched_coordinator(
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


LOOK_AGAIN_S = 60.0  # the longest time-out of a session: a daemon that lost it with the coordinator's is back by then
LOOK_S = 0.5
MOST_LOOKS = 10


def opening(settings: Settings, coordinator: Coordinator, job: str) -> Coordinator:
    """Return the coordinator with the secret of `job`, if this machine has it on record."""
    folder = find(settings.home, job)
    if folder is None or not folder.secret.exists() or coordinator.digest is not None:
        return coordinator
    return with_secret(coordinator, msgspec.structs.replace(settings, secret_file=folder.secret).secret())


async def clear(settings: Settings, say: Callable[[str], object], patience_s: float = 0.0) -> Status | None:
    """Remove what is left of a job that is over or deserted. Return the status of a job that lives, else None.

    `patience_s`: how long sessions of dead workers may still be there. Raises ConfigError.
    """
    named, job = coordinator_of(settings), settings.job
    assert named is not None and job is not None
    coordinator = opening(settings, named, job)
    store = await connect(coordinator, settings.session_timeout_s, connect_timeout_s=REACH_TIMEOUT_S)
    try:
        if not await _lives(store, job, say, patience_s):
            return None
    except AccessDenied:
        raise ConfigError(
            f"job {job} at {coordinator.hosts} is closed to you: EDL_SECRET_FILE or EDL_COORDINATOR_AUTH of it opens it"
        ) from None
    finally:
        await store.close()
    async with JobClient(coordinator, job) as living:
        return await living.status()


async def _lives(store: Store, job: str, say: Callable[[str], object], patience_s: float) -> bool:
    """Tell whether the job lives; if not, nothing is left of it. Raises ConfigError."""
    for _ in range(MOST_LOOKS):
        found = await _settled(store, job, say, patience_s)
        if found is None or found.verdict is Standing.LIVING:
            return found is not None
        with contextlib.suppress(StoreRefused):  # another line does the same, or the next life has just begun
            await leftovers.remove(store, job)
            say(f"a former life of job {job} ({found.state}) is removed")
            return False
    raise ConfigError(f"job {job} is removed and begun again and again by others: end these, and type the line again")


async def _settled(store: Store, job: str, say: Callable[[str], object], patience_s: float) -> Leftovers | None:
    """Return the remains of the job once it is clear whether it lives."""
    clock = asyncio.get_running_loop().time
    until = clock() + patience_s
    while (found := await leftovers.look(store, job)) is not None and found.verdict is Standing.LIVING:
        if clock() >= until:
            return found
        await asyncio.sleep(LOOK_S)
    if found is None or found.verdict is not Standing.DESERTED:
        return found
    say(f"job {job} is {found.state}, and no worker of it is there; looking again in {LOOK_AGAIN_S:g} s")
    await asyncio.sleep(LOOK_AGAIN_S)
    return await leftovers.look(store, job)
