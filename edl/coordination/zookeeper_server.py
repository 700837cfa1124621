"""The local coordinator as a real ZooKeeper, which lives as long as the launcher that started it.

Owns: its configuration file, its command line, the check that it serves, and that only the job may read or write in it,
from before it listens. Does not own: its life (`child_server`), where Java is (`java`), the nodes that the job keeps
there, nor the decision to start it.

It listens at one address, by default on the loopback interface.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from edl.coordination.child_server import ChildServer, serve
from edl.coordination.coordinator_settings import Coordinator, Digest
from edl.coordination.first_snapshot import holds_data, put_first, rights_of, snapshot_of
from edl.coordination.gate import gated
from edl.coordination.java import find_jars, find_java
from edl.coordination.local_place import LOOPBACK
from edl.errors import ConfigError

_OWNER = "owner"
"""The file in the folder that names the only user of its tree, which was closed before its server first listened."""

_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"  # the other main class ignores autopurge
HEAP_MIB = 768
"""Most memory for the nodes of jobs. A cluster's queue at its bounds takes less than half
(`edl.cluster.queue.queue_bounds`, benchmarks/cluster_memory.py); a job by itself a few MiB, and Java takes no more than
is needed.
"""

_FLAGS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",  # 67 MiB instead of 160, and quicker to start
    "-XX:-UsePerfData",
    "-XX:+ExitOnOutOfMemoryError",
    "-Xms32m",
    f"-Xmx{HEAP_MIB}m",
    "-Dzookeeper.commitLogCount=50",  # else the newest 500 requests stay in memory, of up to a megabyte each
    "-Djava.net.preferIPv4Stack=true",
    "-Dzookeeper.jmx.log4j.disable=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",  # at `warn` each wrong connection is a stack trace
)
_TICK_MS = 500

_PROBE_S = 0.15
"""In its first 0.2 s the server may accept a connection and never answer: ask again rather than wait."""


def base_config(folder: Path, port: int, address: str = LOOPBACK) -> dict[str, str]:
    """Return the configuration that every server started by edl gets."""
    return {
        "tickTime": str(_TICK_MS),
        "maxSessionTimeout": "60000",  # its default is 20 ticks, and a longer time-out would silently be cut to that
        "maxClientCnxns": "0",  # its default lets 60 workers of one machine in
        "dataDir": str(folder / "data"),
        "clientPortAddress": address,
        "clientPort": str(port),
        "admin.enableServer": "false",  # would take port 8080
        "4lw.commands.whitelist": "srvr,conf",  # for wait_ready; others would tell strangers about sessions
        "autopurge.purgeInterval": "1",
        "forceSync": "no",  # safe when the process dies; a power cut ends the jobs of this machine anyway
        "preAllocSize": "1024",
    }


class LocalServer(ChildServer):
    """A ZooKeeper server: a standalone one for one job, unless its configuration names others.

    With a `digest`, clients without credentials are disconnected and only clients with these credentials can use any
    node, from the first connection on.
    """

    name = "ZooKeeper"

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, str],
        *,
        lock: int | None = None,
        digest: Digest | None = None,
        first: bytes = b"",
    ) -> None:
        """Prepare the server. `first` is the snapshot to begin with if there are no data."""
        super().__init__(folder, config["clientPortAddress"], int(config["clientPort"]), lock)
        self._data = folder / "data"
        self._data.mkdir(mode=0o700, exist_ok=True)
        self._digest, self._first = digest, first
        self._config = folder / "zoo.cfg"
        self._config.write_text("".join(f"{key}={value}\n" for key, value in config.items()))

    @classmethod
    async def _start_in(
        cls, folder: Path, lock: int, port: int | None, digest: Digest | None, address: str | None
    ) -> Self:
        address = address or LOOPBACK
        _claim(folder, digest)
        closed = {} if digest is None else {"enforce.auth.enabled": "true", "enforce.auth.schemes": "digest"}
        config, first = base_config(folder, 0, address) | closed, snapshot_of(*rights_of(digest))
        return await serve(
            lambda port: cls(folder, config | {"clientPort": str(port)}, lock=lock, digest=digest, first=first),
            address,
            port,
        )

    @property
    def coordinator(self) -> Coordinator:
        """The settings of a connection. While the server is down, another user may take its port; the address names
        this user, so that no client sends the digest to another user's server.
        """
        checked = self._digest is not None and self.address == LOOPBACK
        user = f"{os.geteuid()}@" if checked else ""
        return Coordinator(f"{user}{self.address}:{self.port}", self._digest)

    def spawn(self) -> None:
        """Start the server. Its data may have been removed since it ran last."""
        if self._first:
            self._data.mkdir(mode=0o700, exist_ok=True)
            put_first(self._data, self._first)
        super().spawn()

    def last_words(self) -> str:
        lines = self._log_text().splitlines()
        telling = [line for line in lines if "Exception: " in line or line.startswith("Error")]
        return f"{(telling or lines or ['its log is empty'])[-1].strip()} (all of it in {self.log})"

    def found_port_taken(self) -> bool:
        return "java.net.BindException" in self._log_text()

    async def _serves(self) -> bool:
        if b"Mode: " not in await _ask(self.address, self.port, b"srvr"):  # `ruok` would say yes without a quorum, too
            return False
        return f"dataDir={self._folder}/".encode() in await _ask(
            self.address, self.port, b"conf"
        )  # no other process on this port

    def _environment(self) -> Mapping[str, str]:
        return gated(os.environ)

    def _command(self) -> list[str]:
        class_path = os.pathsep.join(map(str, find_jars()))
        return [str(find_java()), *_FLAGS, "-cp", class_path, _MAIN, str(self._config)]


def _claim(folder: Path, digest: Digest | None) -> None:
    """Write down whose tree it is, before there is one. Raises `ConfigError` if it is another's."""
    owner, (root, _) = folder / _OWNER, rights_of(digest)
    if not holds_data(folder / "data"):
        written = folder / f"{_OWNER}.new"
        written.write_text(root.identity)
        written.replace(owner)
    elif not owner.exists() or owner.read_text() != root.identity:
        raise ConfigError(f"{folder} was used with other credentials: use another folder")


async def _ask(address: str, port: int, word: bytes) -> bytes:
    """Return the server's answer to a four-letter word; empty if there is none in time."""
    try:
        async with asyncio.timeout(_PROBE_S):
            reader, writer = await asyncio.open_connection(address, port, family=socket.AF_INET)
            try:
                writer.write(word)
                return await reader.read()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return b""
