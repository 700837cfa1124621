"""The local coordinator as a real ZooKeeper, which lives as long as the launcher that started it.

Owns: its configuration file, its command line, the check that it serves, and that only the job may read or write in it,
from before it listens: by its first snapshot, and by the gate, which accepts connections only from processes of its own
user and of root. Does not own: its life (`child_server`), where Java is (`local_coordinator`), the gate's code
(`_gate.c`), the nodes that the job keeps there, nor the decision to start it.

It listens at one address, by default on the loopback interface.

A client without any access rights can still exhaust a ZooKeeper: any client may have it hold a message of 1 MB until
the rest arrives, or a watch with a name as long, and some hundreds of these fill its memory. ZooKeeper itself can tell
clients apart only once it has read their messages. The gate is compiled if edl is installed with a compiler.

A ZooKeeper that finds no data makes a tree that every client may change, `/zookeeper` included, and serves it. Closing
that tree afterwards would leave a gap that any client of the machine can use; so it finds a closed tree. The format is
the same in ZooKeeper 3.4 to 3.9: additions of later versions come after it, and may be missing.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Self

from kazoo.security import OPEN_ACL_UNSAFE, READ_ACL_UNSAFE, make_digest_acl

from edl.coordination.child_server import LOOPBACK, ChildServer, serve
from edl.coordination.coordinator_settings import Coordinator, Digest
from edl.coordination.local_coordinator import find_jars, find_java
from edl.errors import ConfigError

_VERSION = "version-2"  # ZooKeeper's name for the folder of its data
_HEADER = struct.pack(">4siq", b"ZKSN", 2, -1)
_NO_SESSIONS = struct.pack(">i", 0)
RESERVED = ("/zookeeper", "/zookeeper/config", "/zookeeper/quota")
_END = struct.pack(">i", 1) + b"/"  # ends the list of nodes, and each whole snapshot
_ROOT_ID, _RESERVED_ID = 1, 2
_STAT = bytes(8 * 4 + 4 * 3 + 8 * 2)  # the stat of a node that was never changed


@dataclass(frozen=True, slots=True)
class Rights:
    """An entry of an ACL."""

    permissions: int
    scheme: str
    identity: str


def rights_of(digest: Digest | None) -> tuple[Rights, Rights]:
    """Return the access rights of the root, and of ZooKeeper's own nodes, which no part of edl uses."""
    if digest is None:
        made = OPEN_ACL_UNSAFE[0], READ_ACL_UNSAFE[0]
    else:
        made = (make_digest_acl(digest.user, digest.password, all=True),) * 2
    root, reserved = (Rights(acl.perms, acl.id.scheme, acl.id.id) for acl in made)
    return root, reserved


def snapshot_of(root: Rights, reserved: Rights) -> bytes:
    """Make the file's content: the root and ZooKeeper's own nodes, without data."""
    acls = struct.pack(">i", 2) + _acl(_ROOT_ID, root) + _acl(_RESERVED_ID, reserved)
    nodes = _node("", _ROOT_ID) + b"".join(_node(path, _RESERVED_ID) for path in RESERVED)
    content = _HEADER + _NO_SESSIONS + acls + nodes + _END
    return content + struct.pack(">q", zlib.adler32(content)) + _END


def put_first(data: Path, content: bytes) -> None:
    """Write this snapshot into `data`, whole and flushed to disk, unless there is a tree already."""
    folder = data / _VERSION
    if holds_data(data):
        return
    folder.mkdir(mode=0o700, exist_ok=True)
    working = folder / "first.new"
    with working.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    working.rename(folder / "snapshot.0")


def holds_data(data: Path) -> bool:
    """Tell whether a ZooKeeper would load a tree from there, or refuse to start, instead of making an open tree.

    ZooKeeper passes over a truncated snapshot, and refuses to start if it finds only a log of changes.
    """
    folder = data / _VERSION
    return any(map(_is_whole, folder.glob("snapshot.*"))) or any(folder.glob("log.*"))


def _is_whole(snapshot: Path) -> bool:
    with snapshot.open("rb") as file:
        file.seek(-min(len(_END), snapshot.stat().st_size), os.SEEK_END)
        return file.read() == _END


def _acl(number: int, rights: Rights) -> bytes:
    return struct.pack(">qii", number, 1, rights.permissions) + _text(rights.scheme) + _text(rights.identity)


def _node(path: str, acl: int) -> bytes:
    return _text(path) + _text("") + struct.pack(">q", acl) + _STAT


def _text(words: str) -> bytes:
    encoded = words.encode()
    return struct.pack(">i", len(encoded)) + encoded


_PRELOAD = "LD_PRELOAD"


def find_gate() -> Path | None:
    """Return the compiled gate; None if it was not compiled, or if its path has a character that LD_PRELOAD does not
    allow.
    """
    here = Path(__file__).parent
    found = [path for suffix in EXTENSION_SUFFIXES if (path := here / f"_gate{suffix}").exists()]
    return found[0] if found and not re.search(r"[\s:$]", str(found[0])) else None


def gated(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a server behind the gate; an unchanged copy if there is no gate."""
    gate, others = find_gate(), environ.get(_PRELOAD)
    if gate is None:
        return dict(environ)
    return {**environ, _PRELOAD: f"{gate}:{others}" if others else str(gate)}


_OWNER = "owner"
"""The file in the folder that names the only user of its tree, which was closed before its server first listened."""

_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"  # the other main class ignores autopurge
HEAP_MIB = 768
"""Most memory for the nodes of jobs. A cluster's queue at its bounds takes less than half
(`edl.cluster.queue.submission`, benchmarks/cluster_memory.py); a job by itself a few MiB, and Java takes no more than
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
        """`first` is the snapshot to begin with if there are no data."""
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
        """Name this user in the address, so that no client sends the digest to another user's server, which may take
        the port while this one is down.
        """
        checked = self._digest is not None and self.address == LOOPBACK
        user = f"{os.geteuid()}@" if checked else ""
        return Coordinator(f"{user}{self.address}:{self.port}", self._digest)

    def spawn(self) -> None:
        """Write the first snapshot before the start: the server's data may have been removed since it ran last."""
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
