"""A ZooKeeper server as a child process.

Owns: its configuration file, its command line, and the check that it serves. Does not own: the choice of port and
folder (`server`), its life as a process (`child_server`), nor where Java is (`java`).

It listens at one address, by default on the loopback interface.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from edl.coordination.child_server import LOOPBACK, ChildServer
from edl.coordination.first_snapshot import put_first
from edl.coordination.gate import gated
from edl.coordination.java import find_jars, find_java

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


class ServerProcess(ChildServer):
    """A ZooKeeper server."""

    name = "ZooKeeper"

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, str],
        *,
        keep_open: Sequence[int] = (),
        first: bytes = b"",
        flags: Sequence[str] = (),
    ) -> None:
        """Prepare the server. `first` is the snapshot to begin with if there are no data; `flags` are further flags for
        Java.
        """
        super().__init__(folder, config["clientPortAddress"], int(config["clientPort"]), keep_open=keep_open)
        self._data = folder / "data"
        self._data.mkdir(mode=0o700, exist_ok=True)
        self._first, self._flags = first, (*_FLAGS, *flags)
        self._config = folder / "zoo.cfg"
        self._config.write_text("".join(f"{key}={value}\n" for key, value in config.items()))

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
        return [str(find_java()), *self._flags, "-cp", class_path, _MAIN, str(self._config)]


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
