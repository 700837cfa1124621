"""A limit on concurrent calls to the coordinator.

Owns: how long a call may wait, when it gives up, and where none may be made. Does not own: the calls (`zookeeper`,
`etcd.etcd_store`, `embedded.embedded_store`).
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from edl.errors import StoreUnavailable, UsageError


class CallLimit:
    """A limit of `at_once` concurrent calls; further calls wait as long as the coordinator answers those before them.

    A call's time-out begins when its turn comes, so a long queue is not taken for a silent coordinator. If a call is
    not answered in time, all calls that waited meanwhile give up with it, so that none waits through one time-out after
    another.
    """

    def __init__(self, at_once: int, answered_within_s: float) -> None:
        self._places = asyncio.Semaphore(at_once)
        self._answered_within_s = answered_within_s
        self._last_silence = -math.inf
        self._pid = os.getpid()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn and hold it. Raises TimeoutError if the work in it takes too long, or if another call timed
        out while this one waited.
        """
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

    @asynccontextmanager
    async def call(self, hosts: str, *, closed: bool) -> AsyncIterator[None]:
        """Hold a turn for a call of a store, which may be `closed`. Each error is one of the port."""
        if os.getpid() != self._pid:
            raise UsageError("a session with the coordinator does not survive a fork: connect in the child process")
        if closed:
            raise StoreUnavailable("the store is closed")
        try:
            async with self.turn():
                yield
        except TimeoutError as error:
            raise StoreUnavailable(f"no answer from the coordinator {hosts} in time") from error
