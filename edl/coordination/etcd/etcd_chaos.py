"""Planned faults on etcd: a cluster whose servers can be killed and frozen, and a session that ends.

Owns: the means by which tests and benchmarks break etcd on purpose. Does not own: when they do so. No module of the
product imports it.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
from pathlib import Path

from edl.coordination.coordinator_settings import Coordinator
from edl.coordination.etcd.etcd_connection import EtcdConnection
from edl.coordination.etcd.etcd_errors import LeaseGone
from edl.coordination.etcd.etcd_messages import LEASE_REVOKE, LeaseRevokeRequest
from edl.coordination.etcd.etcd_server import LocalEtcd
from edl.coordination.etcd.etcd_store import EtcdStore
from edl.coordination.local_place import LOOPBACK, free_port
from edl.errors import StoreUnavailable

_START_S = 60.0
_ASK_S = 10.0


class EtcdCluster:
    """A cluster of servers on this machine, which elect a leader among themselves and agree by majority."""

    def __init__(self, folder: Path, size: int = 3) -> None:
        ports = [free_port() for _ in range(2 * size)]
        urls = {f"etcd{n}": f"http://{LOOPBACK}:{port}" for n, port in enumerate(ports[size:])}
        token = secrets.token_hex(8)
        self.servers: list[LocalEtcd] = []
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
            self.servers.append(LocalEtcd(own, LOOPBACK, port, flags=flags))

    @property
    def coordinator(self) -> Coordinator:
        """The settings of a connection."""
        return Coordinator("etcd://" + ",".join(f"{LOOPBACK}:{server.port}" for server in self.servers))

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


async def expire_lease(store: EtcdStore, through: Coordinator) -> None:
    """End the store's session without its knowledge, by another client, at the first server that answers."""
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
