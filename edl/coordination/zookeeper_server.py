"""The local coordinator: a real ZooKeeper that lives as long as the launcher that started it.

Owns: its folder (private, locked), and that only the job may read or write in it, from before it listens. Does not own:
its life (`local_life`) and its process (`server_process`), the nodes that the job keeps there, nor the decision to
start it.
"""

from __future__ import annotations

import functools
import logging
import os
from pathlib import Path

from edl.coordination.child_server import LOOPBACK
from edl.coordination.coordinator_settings import Coordinator, Digest
from edl.coordination.first_snapshot import holds_data, rights_of, snapshot_of
from edl.coordination.java import find_jars, find_java
from edl.coordination.local_life import LocalLife, serve
from edl.coordination.local_place import free_port, lock_folder, private_folder
from edl.coordination.stranger_nodes import Wiper
from edl.coordination.zookeeper_process import ServerProcess, base_config
from edl.errors import ConfigError

logger = logging.getLogger("edl")

_OWNER = "owner"
"""The file in the folder that names the only user of its tree, which was closed before its server first listened."""

__all__ = ["LocalServer", "find_jars", "find_java", "free_port"]


class LocalServer(LocalLife[ServerProcess]):
    """A standalone server for one job.

    The server dies with the thread that called `start`, however that thread ends, so it must be the main thread. Ctrl-C
    in the terminal does not reach the server. With `digest`, clients without credentials are disconnected and only
    clients with these credentials can use any node, from the first connection on.
    """

    def __init__(self, lock: int, process: ServerProcess, digest: Digest | None) -> None:
        super().__init__(lock, process)
        self._digest = digest

    @classmethod
    async def start(
        cls, folder: Path, *, port: int | None = None, digest: Digest | None = None, address: str = LOOPBACK
    ) -> LocalServer:
        """Start a server in `folder`, which is created, and wait until it serves: half a second, a few on a busy
        machine.

        A folder that was used before keeps its data, and must be given the same `digest`. Raises `ConfigError` with one
        line and the remedy: no Java, no jars, the port or the folder in use.
        """
        folder = private_folder(folder)
        lock = await lock_folder(folder, "ZooKeeper")
        try:
            wiper = _wiper(folder, digest)
            make = functools.partial(_configured, folder, address=address, lock=lock, digest=digest, wiper=wiper)
            server = cls(lock, await serve(make, address, port), digest)
            if wiper is not None:
                await server._wipe(folder, wiper)
        except BaseException:
            os.close(lock)
            raise
        return server

    @property
    def coordinator(self) -> Coordinator:
        """The settings of a connection. While the server is down, another user may take its port; the address names
        this user, so that no client sends the digest to another user's server.
        """
        checked = self._digest is not None and self._process.address == LOOPBACK
        user = f"{os.geteuid()}@" if checked else ""
        return Coordinator(f"{user}{self._process.address}:{self._process.port}", self._digest)

    async def _wipe(self, folder: Path, wiper: Wiper) -> None:
        root, _ = rights_of(self._digest)
        try:
            for path in await wiper.wipe(self.coordinator, root):
                logger.warning("%s: another user had made %s there: it is removed", folder, path)
        except BaseException:
            await self._process.stop()
            raise
        (folder / _OWNER).write_text(root.identity)


def _wiper(folder: Path, digest: Digest | None) -> Wiper | None:
    """Return a Wiper if the data come from an earlier edl, under which strangers could make nodes; else None. Raises
    `ConfigError`.
    """
    owner, (root, _) = folder / _OWNER, rights_of(digest)
    if not holds_data(folder / "data"):
        owner.write_text(root.identity)
        return None
    if not (owner.exists() and owner.read_text()):  # empty: the launcher was killed while it wrote the file
        return None if digest is None else Wiper(folder)
    if owner.read_text() != root.identity:
        raise ConfigError(f"{folder} was used with other credentials: use another folder")
    return None


def _configured(
    folder: Path, port: int, *, address: str, lock: int, digest: Digest | None, wiper: Wiper | None
) -> ServerProcess:
    config = base_config(folder, port, address)
    if digest is not None:
        config |= {"enforce.auth.enabled": "true", "enforce.auth.schemes": "digest"}
    first = snapshot_of(*rights_of(digest))
    flags = () if wiper is None else (wiper.flag,)
    return ServerProcess(folder, config, keep_open=[lock], first=first, flags=flags)
