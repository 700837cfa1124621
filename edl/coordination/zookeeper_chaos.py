"""Planned faults: an ensemble whose servers can be killed and frozen, and a session that expires.

Owns: the means by which tests and benchmarks break the coordinator on purpose. Does not own: when they do so. No module
of the product imports it.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path

from kazoo.client import KazooClient

from edl.coordination import kazoo_client
from edl.coordination.coordinator_settings import Coordinator
from edl.coordination.local_place import LOOPBACK, free_port
from edl.coordination.zookeeper import ZookeeperStore
from edl.coordination.zookeeper_server import LocalServer, base_config

_START_S = 60.0


class Ensemble:
    """An ensemble of servers on this machine, which elect a leader among themselves and agree by majority."""

    def __init__(self, folder: Path, size: int = 3) -> None:
        ports = [free_port() for _ in range(3 * size)]
        peers = {
            f"server.{n + 1}": f"{LOOPBACK}:{ports[size + n]}:{ports[2 * size + n]}"
            for n in range(size)
        }  # fmt: skip
        self.servers: list[LocalServer] = []
        for n in range(size):
            own = folder / f"server-{n + 1}"
            (own / "data").mkdir(parents=True)
            (own / "data" / "myid").write_text(str(n + 1))
            config = base_config(own, ports[n]) | {"initLimit": "10", "syncLimit": "4"} | peers
            self.servers.append(LocalServer(own, config))

    @property
    def coordinator(self) -> Coordinator:
        """The settings of a connection."""
        return Coordinator(",".join(f"{LOOPBACK}:{server.port}" for server in self.servers))

    async def start(self) -> None:
        """Start all servers and wait until all serve. Raises `ConfigError` if one does not."""
        for server in self.servers:
            server.spawn()
        await self.wait_ready()

    async def wait_ready(self) -> None:
        """Wait until all running servers serve."""
        running = [server for server in self.servers if server.running]
        await asyncio.gather(*(server.wait_ready(_START_S) for server in running))

    async def kill(self, index: int) -> None:
        """Kill one server, as the kernel would when memory runs out."""
        self.servers[index].signal(signal.SIGKILL)
        await self.servers[index].wait_exit()

    async def restart(self, index: int) -> None:
        """Start a killed server again, with its data."""
        self.servers[index].spawn()
        await self.servers[index].wait_ready(_START_S)

    async def stop(self) -> None:
        """End all servers."""
        await asyncio.gather(*(server.stop() for server in self.servers))


async def expire_session(store: ZookeeperStore, through: Coordinator) -> None:
    """End the store's session without its knowledge: a second client, on a connection of its own, takes over the
    session and closes it.
    """
    mine = store._client
    thief = KazooClient(
        hosts=through.servers,
        timeout=store._session_timeout_s,
        client_id=(mine._session_id, mine._session_passwd),
        auth_data=mine.auth_data,
        logger=mine.logger,
    )
    with contextlib.suppress(TimeoutError):  # the store took the session back meanwhile
        try:
            await kazoo_client.start(thief, timeout_s=store._session_timeout_s)
        finally:
            await kazoo_client.stop(thief, timeout_s=store._session_timeout_s)
