"""Test whether a process still listens at a daemon's address: its host refuses at once if none does.

A host that is gone, or cut off, does not answer; and a frozen one still accepts a connection. So a refusal is sure
enough to end a session early, which a living daemon would survive as it survives its session's end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from edl.protocol.record import Identity

PATIENCE_S = 0.5  # for a connection
AGAIN_S = 0.1  # between two attempts: the first may have met a daemon that just ends, or begins


async def refuses(address: str, port: int) -> bool:
    """Tell whether a connection is refused twice in a row."""
    if not await _refuses_once(address, port):
        return False
    await asyncio.sleep(AGAIN_S)
    return await _refuses_once(address, port)


async def _refuses_once(address: str, port: int) -> bool:
    try:
        async with asyncio.timeout(PATIENCE_S):
            _, writer = await asyncio.open_connection(address, port)
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError):
        return False
    writer.close()
    return False


class PortProbe:
    """Test the addresses of silent workers, for one leader (`edl.core.job.unreachable_members`)."""

    def __init__(self, tell: Callable[[tuple[Identity, ...]], None]) -> None:
        """Keep the callback. `tell`: no process listens any more at the addresses of these workers."""
        self._tell = tell
        self._silent: Sequence[Identity] = ()
        self._task: asyncio.Task[None] | None = None

    def look_for(self, silent: Sequence[Identity]) -> None:
        """Test these workers from now on, until others are given, or none."""
        self._silent = silent
        if silent and self._task is None:
            self._task = asyncio.ensure_future(self._knock())

    def close(self) -> None:
        """Stop; `tell` is not called after this."""
        if self._task is not None:
            self._task.cancel()

    async def _knock(self) -> None:
        while self._silent:
            asked = tuple(one for one in self._silent if one.port)
            refused = await asyncio.gather(*(refuses(one.address, one.port) for one in asked))
            gone = tuple(one for one, refuses_us in zip(asked, refused, strict=True) if refuses_us)
            if gone:
                self._tell(gone)
            await asyncio.sleep(AGAIN_S)
        self._task = None
