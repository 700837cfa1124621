"""The local coordinator as a process of edl's own, which lives as long as the launcher that started it.

Owns: its folder (private, locked) and its command line. Does not own: the process's work (`__main__`), its life
(`local_life`), nor the decision to start it.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Final

from edl.coordination.child_server import LOOPBACK, ChildServer
from edl.coordination.coordinator_settings import EMBEDDED, Coordinator, Digest
from edl.coordination.local_life import LocalLife, started
from edl.coordination.local_place import LOCK, is_same, lock_folder, private_folder
from edl.errors import ConfigError

JOURNAL: Final = "journal"
SOCKET: Final = "socket"
SERVES: Final = "the embedded coordinator serves"

ONE_MACHINE: Final = (
    "the embedded coordinator serves jobs of one machine, on no port: for a cluster, or workers of other hosts, have a "
    "ZooKeeper or an etcd (--local-coordinator, or a running one by --coordinator)"
)

_TIME = re.compile(r"^[-\d]+ [\d:,]+ ")


class EmbeddedProcess(ChildServer):
    """The child process of the embedded coordinator."""

    name = "coordinator"

    def __init__(self, folder: Path, lock: int) -> None:
        super().__init__(folder, LOOPBACK, 0, keep_open=[lock])

    def forget(self) -> None:
        """Remove the process's socket. Call it after the process's end."""
        (self._folder / SOCKET).unlink(missing_ok=True)

    def last_words(self) -> str:
        lines = self._log_text().splitlines()
        return f"{_TIME.sub('', (lines or ['its log is empty'])[-1].strip())} (all of it in {self.log})"

    def found_port_taken(self) -> bool:
        return False

    async def _serves(self) -> bool:
        return SERVES in self._log_text()

    def _command(self) -> list[str]:
        # -P keeps the job's folder out of the module path.
        return [sys.executable, "-P", "-m", "edl.coordination.embedded", str(self._folder)]


class LocalEmbedded(LocalLife[EmbeddedProcess]):
    """A server for the jobs of one launcher, with the guarantees of `edl.coordination.zookeeper_server.LocalServer`."""

    def __init__(self, lock: int, process: EmbeddedProcess, folder: Path) -> None:
        super().__init__(lock, process)
        self._folder, self._socket = folder, folder / SOCKET

    @classmethod
    async def start(
        cls,
        folder: Path,
        *,
        port: int | None = None,
        digest: Digest | None = None,  # noqa: ARG003 - the folder keeps others out
        address: str | None = None,
    ) -> LocalEmbedded:
        """Start a server in `folder`, which is created, and wait until it serves. Only processes of this user can
        connect.

        A folder that was used before keeps its data. Raises `ConfigError` with one line and the remedy: a port or an
        address is asked for, the folder is in use, or its journal is damaged.
        """
        if port is not None or address not in {None, LOOPBACK}:
            raise ConfigError(ONE_MACHINE)
        folder = private_folder(folder)
        lock = await lock_folder(folder, "coordinator")
        try:
            return cls(lock, await started(EmbeddedProcess(folder, lock)), folder)
        except BaseException:
            os.close(lock)
            raise

    async def _take_folder(self) -> None:
        if not is_same(self._lock, self._folder / LOCK):
            self._folder.mkdir(mode=0o700, exist_ok=True)
            lock = await lock_folder(self._folder, self._process.name)
            os.close(self._lock)
            self._lock, self._process = lock, EmbeddedProcess(self._folder, lock)

    @property
    def coordinator(self) -> Coordinator:
        """The settings of a connection."""
        return Coordinator(f"{EMBEDDED}://{self._socket}")
