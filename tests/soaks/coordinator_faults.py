"""Planned faults on coordinators: servers of an ensemble are killed and come back, and a session ends.

Owns: the means. Does not own: when soaks and contract tests use them.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from edl.coordination import kazoo_client
from edl.coordination.child_server import LOOPBACK, ChildServer, free_port
from edl.coordination.coordinator_settings import Coordinator
from edl.coordination.embedded.embedded_core import EndSession, Told
from edl.coordination.embedded.embedded_store import EmbeddedStore
from edl.coordination.etcd.etcd_connection import EtcdConnection, LeaseGone
from edl.coordination.etcd.etcd_messages import LEASE_REVOKE, LeaseRevokeRequest
from edl.coordination.etcd.etcd_server import LocalEtcd
from edl.coordination.etcd.etcd_store import EtcdStore
from edl.coordination.zookeeper import ZookeeperStore
from edl.coordination.zookeeper_server import LocalServer, base_config
from edl.errors import StoreUnavailable
from edl.transport.call_errors import PipeClosed
from edl.transport.pipe import LoopClient

_START_S = 60.0
_ASK_S = 10.0


class Ensemble:
    """Servers on this machine, which elect a leader among themselves and agree by majority."""

    def __init__(self, servers: Sequence[ChildServer], scheme: str = "") -> None:
        self.servers = servers
        self.coordinator = Coordinator(scheme + ",".join(f"{LOOPBACK}:{server.port}" for server in servers))

    async def start(self) -> None:
        """Start all servers and wait until all serve. Raises `ConfigError` if one does not."""
        for server in self.servers:
            server.spawn()
        await asyncio.gather(*(server.wait_ready(_START_S) for server in self.servers))

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


def zookeeper_ensemble(folder: Path, size: int = 3) -> Ensemble:
    ports = [free_port() for _ in range(3 * size)]
    peers = {
        f"server.{n + 1}": f"{LOOPBACK}:{ports[size + n]}:{ports[2 * size + n]}"
        for n in range(size)
    }  # fmt: skip
    servers = []
    for n in range(size):
        own = folder / f"server-{n + 1}"
        (own / "data").mkdir(parents=True)
        (own / "data" / "myid").write_text(str(n + 1))
        servers.append(LocalServer(own, base_config(own, ports[n]) | {"initLimit": "10", "syncLimit": "4"} | peers))
    return Ensemble(servers)


def etcd_ensemble(folder: Path, size: int = 3) -> Ensemble:
    ports = [free_port() for _ in range(2 * size)]
    urls = {f"etcd{n}": f"http://{LOOPBACK}:{port}" for n, port in enumerate(ports[size:])}
    token = secrets.token_hex(8)
    servers = []
    for (name, url), port in zip(urls.items(), ports, strict=False):
        own = folder / name
        own.mkdir(mode=0o700, parents=True)
        flags = {
            "name": name,
            "heartbeat-interval": "100",
            "election-timeout": "1000",
            "listen-peer-urls": url,
            "initial-advertise-peer-urls": url,
            "initial-cluster": ",".join(f"{other}={there}" for other, there in urls.items()),
            "initial-cluster-token": token,
        }
        servers.append(LocalEtcd(own, LOOPBACK, port, flags=flags))
    return Ensemble(servers, "etcd://")


async def expire(store: Any, through: Coordinator) -> None:
    """End the store's session without its knowledge, by another client."""
    match store:
        case ZookeeperStore():
            await _take_over(store, through)
        case EtcdStore():
            await _revoke(store, through)
        case EmbeddedStore():
            await _end(store, through)


async def _take_over(store: ZookeeperStore, through: Coordinator) -> None:
    """End the session by a second client that takes it over, on a connection of its own, and closes it."""
    mine = store._client
    thief = KazooClient(
        hosts=through.servers,
        timeout=_ASK_S,
        client_id=mine.client_id,
        auth_data=mine.auth_data,
        logger=mine.logger,
    )
    with contextlib.suppress(TimeoutError):  # the store took the session back meanwhile
        try:
            await kazoo_client.start(thief, timeout_s=_ASK_S)
        finally:
            await kazoo_client.stop(thief, timeout_s=_ASK_S)


async def _revoke(store: EtcdStore, through: Coordinator) -> None:
    """End the session at the first server that answers."""
    session = store.session
    for address in through.endpoints:
        connection = EtcdConnection(address, through, patience_s=_ASK_S)
        try:
            await connection.open()
            await connection.call(LEASE_REVOKE, LeaseRevokeRequest(session), timeout_s=_ASK_S)
            return
        except LeaseGone:  # already
            return
        except StoreUnavailable:
            continue
        finally:
            await connection.close()


async def _end(store: EmbeddedStore, through: Coordinator) -> None:
    """Do nothing if no server answers."""
    gone = asyncio.Event()
    client = LoopClient(through.socket, Told, lambda *_: None, lambda _: gone.set())
    try:
        connection = await client.connect()
    except PipeClosed:
        return
    connection.send(EndSession(store.session))
    async with asyncio.timeout(_ASK_S):
        await gone.wait()
