"""Calls that wait for their turn with the coordinator.

Owns: how long a call may wait, and when it gives up. Does not own: what is called (`zookeeper`, `etcd.store`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """Some calls at a time; the rest wait as long as the coordinator answers those before them.

    A queue is no silence: a call's own time begins with its turn. Where a call is not answered in its time, all those
    that waited beside it give up with it, so that none waits through the silences of the others one by one.
    """

    def __init__(self, at_once: int, answered_within_s: float) -> None:
        self._places = asyncio.Semaphore(at_once)
        self._answered_within_s = answered_within_s
        self._last_silence = -math.inf

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Raises TimeoutError if what is done within is not done in time, or if another call's was not meanwhile."""
        loop = asyncio.get_running_loop()
        came = loop.time()
        async with self._places:  # first come, first served
            if self._last_silence >= came:
                raise TimeoutError
            try:
                async with asyncio.timeout(self._answered_within_s):
                    yield
            except TimeoutError:
                self._last_silence = loop.time()
                raise
