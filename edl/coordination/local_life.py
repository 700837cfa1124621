"""The life of a local server of any kind: starting on a port, ending, starting again, unlocking its folder.

Owns: these steps. Does not own: the user whom it serves (`server`, `etcd.server`), its process (`child_server`), nor
the folder, the lock and the ports (`local_place`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from edl.coordination.child_server import ChildServer
from edl.coordination.local_place import check_free, free_port
from edl.errors import ConfigError

START_S = 60.0
_TRIES = 5

P = TypeVar("P", bound=ChildServer)


class LocalLife(Generic[P]):
    """A running server in a folder that it has locked."""

    def __init__(self, lock: int, process: P) -> None:
        self._lock = lock
        self._process = process

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
        """Wait for the server's end and return its exit status; `restart` brings it back with all its data."""
        return await self._process.wait_exit()

    async def restart(self) -> None:
        """Start again on the same port and folder, after `wait_exit`, with sessions and data. Raises ConfigError."""
        try:
            await self._take_folder()
            self._process.spawn()
        except OSError as error:  # the folder was removed, for example
            reason = f"{error.strerror}: {error.filename}"
            raise ConfigError(f"the local {self._process.name} does not start again: {reason}") from None
        if not await self._process.wait_ready(START_S):
            raise ConfigError(f"the local {self._process.name} does not start again: {self._process.last_words()}")

    async def _take_folder(self) -> None:
        """Make and lock the folder if it was removed, for a server that can go on in a new one. Raises ConfigError,
        OSError.
        """

    def signal(self, number: int) -> None:
        """Send the server a signal; for tests of what the job survives."""
        self._process.signal(number)

    async def stop(self) -> None:
        """End the server and unlock its folder. It may have ended already, and `stop` may be called twice."""
        await self._process.stop()
        self._process.forget()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


async def serve(make: Callable[[int], P], address: str, port: int | None) -> P:
    """Start a server and return it once it serves. A free port may be taken a moment later, so several are tried; a
    given port is tried once.
    """
    if port is not None:
        check_free(address, port)
        return await started(make(port))
    for _ in range(_TRIES - 1):
        process = make(free_port(address))
        if await _becomes_ready(process):
            return process
        if not process.found_port_taken():
            raise _does_not_start(process)
        process.forget()
    return await started(make(free_port(address)))


async def started(process: P) -> P:
    """Start a server and return it once it serves. Raises ConfigError if it ends before."""
    if not await _becomes_ready(process):
        raise _does_not_start(process)
    return process


async def _becomes_ready(process: ChildServer) -> bool:
    try:
        process.spawn()
        return await process.wait_ready(START_S)
    except BaseException:
        await process.stop()  # no program to run, or Ctrl-C in between, for example
        process.forget()
        raise


def _does_not_start(process: ChildServer) -> ConfigError:
    error = ConfigError(f"the local {process.name} does not start: {process.last_words()}")
    process.forget()
    return error
