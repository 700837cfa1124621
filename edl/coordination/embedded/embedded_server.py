"""The local coordinator as a process of edl's own, which lives as long as the launcher that started it.

Owns: its command line. Does not own: the process's work (`__main__`), its life (`child_server`), nor the decision to
start it.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Final, Self

from edl.coordination.child_server import LOCK, LOOPBACK, ChildServer, is_same, lock_folder, started
from edl.coordination.coordinator_settings import EMBEDDED, Coordinator, Digest
from edl.errors import ConfigError

JOURNAL: Final = "journal"
SOCKET: Final = "socket"
SERVES: Final = "the embedded coordinator serves"

ONE_MACHINE: Final = (
    "the embedded coordinator serves jobs of one machine, on no port: for a cluster, or workers of other hosts, have a "
    "ZooKeeper or an etcd (--local-coordinator, or a running one by --coordinator)"
)

_TIME = re.compile(r"^[-\d]+ [\d:,]+ ")


class LocalEmbedded(ChildServer):
    """A server for the jobs of one launcher. Only processes of this user can connect."""

    name = "coordinator"

    @classmethod
    async def start(
        cls,
        folder: Path,
        *,
        port: int | None = None,
        digest: Digest | None = None,  # noqa: ARG003 - the folder keeps others out
        address: str | None = None,
    ) -> Self:
        """Raises `ConfigError` if a port or an address is asked for, or the journal is damaged, too."""
        if port is not None or address not in {None, LOOPBACK}:
            raise ConfigError(ONE_MACHINE)
        return await super().start(folder)

    @classmethod
    async def _start_in(cls, folder: Path, lock: int, *_: object) -> Self:
        return await started(cls(folder, LOOPBACK, 0, lock))

    @property
    def coordinator(self) -> Coordinator:
        return Coordinator(f"{EMBEDDED}://{self._folder / SOCKET}")

    async def _take_folder(self) -> None:
        if self._lock is not None and not is_same(self._lock, self._folder / LOCK):
            self._folder.mkdir(mode=0o700, exist_ok=True)
            lock = await lock_folder(self._folder, self.name)
            os.close(self._lock)
            self._lock = lock

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
