"""The local coordinator: a real ZooKeeper that lives as long as the launcher that started it.

Owns: its folder (private, locked), and that only the job may read or write in it. Does not own: its life (`local_life`)
and its process (`server_process`), what the job keeps there, nor the decision to have one.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

from kazoo.exceptions import KazooException, NoAuthError
from kazoo.security import make_digest_acl

from edl.coordination import kazoo_client
from edl.coordination.child_server import LOOPBACK
from edl.coordination.java import find_jars, find_java
from edl.coordination.local_life import START_S, LocalLife, serve
from edl.coordination.local_place import free_port, lock_folder, private_folder
from edl.coordination.server_process import ServerProcess, base_config
from edl.coordination.settings import Coordinator, Digest
from edl.errors import ConfigError

__all__ = ["LocalServer", "find_jars", "find_java", "free_port"]


class LocalServer(LocalLife[ServerProcess]):
    """A standalone server for one job.

    It dies with the thread that called `start`, however that ends, so that must be the main thread. Ctrl-C in the
    terminal does not reach it. With `digest`, clients without credentials are cut off and everything below the root
    opens to these only.
    """

    def __init__(self, folder: Path, lock: int, process: ServerProcess, digest: Digest | None) -> None:
        super().__init__(lock, process)
        self._folder = folder
        self._digest = digest

    @classmethod
    async def start(
        cls, folder: Path, *, port: int | None = None, digest: Digest | None = None, address: str = LOOPBACK
    ) -> LocalServer:
        """Start one in `folder`, which is created, and wait until it serves: half a second, a few on a busy machine.

        A folder that was used before keeps its data, and must be given the same `digest`.
        Raises `ConfigError` with one line and the remedy: no Java, no jars, the port or the folder in use.
        """
        folder = private_folder(folder)
        lock = await lock_folder(folder, "ZooKeeper")
        try:
            make = functools.partial(_configured, folder, address=address, lock=lock, protected=digest is not None)
            process = await serve(make, address, port)
            server = cls(folder, lock, process, digest)
            try:
                await server._close_root()
            except BaseException:
                await process.stop()
                raise
        except BaseException:
            os.close(lock)
            raise
        return server

    @property
    def coordinator(self) -> Coordinator:
        """How to connect."""
        return Coordinator(f"{self._process.address}:{self._process.port}", self._digest)

    async def _close_root(self) -> None:
        """Let no other client create nodes, from the root on: access rights are not inherited, so each level counts."""
        if self._digest is None:
            return
        client = kazoo_client.make_client(self.coordinator, session_timeout_s=10.0)
        acl = [make_digest_acl(self._digest.user, self._digest.password, all=True)]
        try:
            await kazoo_client.start(client, timeout_s=START_S)
            await kazoo_client.settle(client.set_acls_async("/", acl))
        except NoAuthError as error:
            raise ConfigError(f"{self._folder} was used with other credentials: use another folder") from error
        except (TimeoutError, KazooException) as error:
            raise ConfigError(f"the local ZooKeeper fails: {error!r}; {self._process.last_words()}") from error
        finally:
            await kazoo_client.stop(client, timeout_s=2.0)


def _configured(folder: Path, port: int, address: str, lock: int, *, protected: bool) -> ServerProcess:
    config = base_config(folder, port, address)
    if protected:
        config |= {"enforce.auth.enabled": "true", "enforce.auth.schemes": "digest"}
    return ServerProcess(folder, config, keep_open=[lock])
