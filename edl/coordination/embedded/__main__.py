"""The process of the embedded coordinator: `python -m edl.coordination.embedded FOLDER`; `embedded_server` starts it.

Owns: the loop, the clock, and carrying out the commands of `embedded_core`. It listens on a socket in FOLDER that only
its user can open, and keeps its journal there.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import sys
from pathlib import Path
from typing import Any

from edl.coordination.child_server import is_same, lock_folder
from edl.coordination.embedded.embedded_core import Asked, Command, EmbeddedCore, HangUp, PlannedRecord, SendTold
from edl.coordination.embedded.embedded_server import JOURNAL, SERVES, SOCKET
from edl.coordination.embedded.journal import Journal
from edl.coordination.store_state import StoreState
from edl.errors import ConfigError
from edl.transport.pipe import Connection, PipeServer

logger = logging.getLogger("edl")

MAX_BYTES = 256 << 20
"""Largest size of all nodes together; the nodes of one job have a few MiB."""

_LOOK_S = 0.2


class EmbeddedServer:
    def __init__(self, folder: Path) -> None:
        """Read the journal of `folder`. Raises ConfigError with one line if the journal cannot be used."""
        self._folder = folder
        self._opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._state = StoreState(MAX_BYTES)
        try:
            self._journal = Journal(folder / JOURNAL, self._state)
        except OSError as error:
            raise ConfigError(f"the journal {folder / JOURNAL} cannot be used: {error}") from error
        self._loop = asyncio.get_running_loop()
        self._core = EmbeddedCore(self._state, self._loop.time())
        self._pipe = PipeServer(folder / SOCKET, Asked, self._heard, self._gone)
        self._connections: dict[int, Connection] = {}
        self._links: dict[Connection, int] = {}
        self._linked = 0
        self._complaint = ""
        self._homeless = False  # the folder is gone, and that was said

    async def serve(self) -> None:
        """Serve until cancelled."""
        await self._pipe.start()
        logger.info(SERVES)
        while True:
            for session in self._core.expired(self._loop.time()):
                self._keep(self._core.end(session))
            if self._journal.removed:
                await self._make_files_anew()
            await asyncio.sleep(_LOOK_S)

    async def _make_files_anew(self) -> None:
        """Raise ConfigError, too, if the folder was removed and another server is in a new one."""
        try:
            if not is_same(self._opened, self._folder):
                self._folder.mkdir(mode=0o700, exist_ok=True)  # not where the record of the whole job is gone
                await lock_folder(self._folder, "coordinator")  # for the life of this process
                os.close(self._opened)
                self._opened = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                await self._pipe.start()
                logger.warning("the folder %s was removed while it was in use, and is made anew", self._folder)
        except OSError as error:
            if not self._homeless:
                self._homeless = True
                logger.warning("the coordinator's folder was removed and cannot be made anew: %s", error)
            return
        self._compact("it was removed")

    def _heard(self, connection: Connection, message: Any) -> None:
        link = self._links.get(connection)
        if link is None:
            self._linked = link = self._linked + 1
            self._links[connection], self._connections[link] = link, connection
        # Random, so that a server whose journal was removed takes no client's session for one of its own.
        decided = self._core.hear(link, message, self._loop.time(), 1 + secrets.randbits(62))
        if isinstance(decided, PlannedRecord):
            self._keep(decided)
        else:
            self._carry_out(decided)

    def _gone(self, connection: Connection) -> None:
        link = self._links.pop(connection, None)
        if link is not None:
            del self._connections[link]
            self._core.left(link)

    def _keep(self, plan: PlannedRecord) -> None:
        try:
            self._journal.append(plan.prepared.record)
        except OSError as error:
            self._complain(f"the coordinator cannot write its journal: {error.strerror or error}; free some space")
            self._carry_out(self._core.refuse(plan, self._complaint))
            return
        self._complaint = ""
        self._carry_out(self._core.settle(plan, self._loop.time()))
        if self._journal.full:
            self._compact("it has grown")

    def _compact(self, why: str) -> None:
        try:
            self._journal.compact(self._state)
        except OSError as error:
            self._complain(f"the coordinator cannot write its journal anew ({why}): {error.strerror or error}")

    def _complain(self, words: str) -> None:
        if words != self._complaint:
            self._complaint = words
            logger.warning(words)

    def _carry_out(self, commands: list[Command]) -> None:
        for command in commands:
            connection = self._connections.get(command.link)
            if connection is not None:
                match command:
                    case SendTold(_, message):
                        connection.send(message)
                    case HangUp():
                        connection.close()


async def serve(folder: Path) -> None:
    server = EmbeddedServer(folder)
    serving = asyncio.create_task(server.serve())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
    await asyncio.wait({serving})
    if not serving.cancelled():
        serving.result()


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    try:
        asyncio.run(serve(Path(sys.argv[1])))
    except ConfigError as error:
        logger.error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
