"""The local coordinator: a real ZooKeeper that lives as long as the launcher that started it.

Owns: its folder (private, locked), its port, and that only the job may read or write in it. Does not own: the process
(`server_process`), what the job keeps there, nor the decision to have one.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from kazoo.exceptions import KazooException, NoAuthError
from kazoo.security import make_digest_acl

from edl.coordination import kazoo_client
from edl.coordination.child_server import LOOPBACK
from edl.coordination.java import find_jars, find_java
from edl.coordination.local_place import check_free, free_port, lock_folder, private_folder
from edl.coordination.server_process import ServerProcess, base_config
from edl.coordination.settings import Coordinator, Digest
from edl.errors import ConfigError

__all__ = ["LocalServer", "find_jars", "find_java", "free_port"]

_START_S = 60.0
_TRIES = 5


class LocalServer:
    """A standalone server for one job.

    It dies with the thread that called `start`, however that ends, so that must be the main thread. Ctrl-C in the
    terminal does not reach it. With `digest`, clients without credentials are cut off and everything below the root
    opens to these only.
    """

    def __init__(self, folder: Path, lock: int, process: ServerProcess, digest: Digest | None) -> None:
        self._folder = folder
        self._lock = lock
        self._process = process
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
            process = await _serve(folder, address, port, lock, protected=digest is not None)
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

    @property
    def port(self) -> int:
        return self._process.port

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> Path:
        return self._process.log

    async def wait_exit(self) -> int:
        """Its exit status, once it ended for whatever reason; `restart` brings it back with all its data."""
        return await self._process.wait_exit()

    async def restart(self) -> None:
        """Start again on the same port and folder, after `wait_exit`. Sessions and data go on."""
        self._process.spawn()
        if not await self._process.wait_ready(_START_S):
            raise ConfigError(f"the local ZooKeeper does not start again: {self._process.last_words()}")

    def signal(self, number: int) -> None:
        """Send the server a signal; for tests of what the job survives."""
        self._process.signal(number)

    async def stop(self) -> None:
        """End it and let go of the folder. Fine when it ended already, and twice."""
        await self._process.stop()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    async def _close_root(self) -> None:
        """Let no other client create nodes, from the root on: access rights are not inherited, so each level counts."""
        if self._digest is None:
            return
        client = kazoo_client.make_client(self.coordinator, session_timeout_s=10.0)
        acl = [make_digest_acl(self._digest.user, self._digest.password, all=True)]
        try:
            await kazoo_client.start(client, timeout_s=_START_S)
            await kazoo_client.settle(client.set_acls_async("/", acl))
        except NoAuthError as error:
            raise ConfigError(f"{self._folder} was used with other credentials: use another folder") from error
        except (TimeoutError, KazooException) as error:
            raise ConfigError(f"the local ZooKeeper fails: {error!r}; {self._process.last_words()}") from error
        finally:
            await kazoo_client.stop(client, timeout_s=2.0)


async def _serve(folder: Path, address: str, port: int | None, lock: int, *, protected: bool) -> ServerProcess:
    """A server that serves. A port found free may be gone a moment later, so a few are tried; a given one is not."""
    if port is not None:
        check_free(address, port)
    words = ""
    for _ in range(_TRIES if port is None else 1):
        config = base_config(folder, port or free_port(address), address)
        if protected:
            config |= {"enforce.auth.enabled": "true", "enforce.auth.schemes": "digest"}
        process = ServerProcess(folder, config, keep_open=[lock])
        process.spawn()
        try:
            if await process.wait_ready(_START_S):
                return process
        except BaseException:
            process.signal(signal.SIGKILL)  # Ctrl-C in between, for example
            await process.wait_exit()
            raise
        words = process.last_words()
        if not process.found_port_taken():
            break
    raise ConfigError(f"the local ZooKeeper does not start: {words}")
