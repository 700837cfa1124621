"""The nodes by which the coordinator knows that this daemon lives: they go with its session, and return with the
next.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

from edl.clock import Clock
from edl.coordination.store import Create, Delete, Link, NodeExists, Store, StoreRefused
from edl.errors import StoreUnavailable


class PresenceNode:
    """The presence nodes of one daemon."""

    def __init__(self, store: Store, clock: Clock, marks: Mapping[str, bytes]) -> None:
        """Watch the connection, which has just come. `marks`: the nodes and their values."""
        self._store = store
        self._clock = clock
        self._marks = marks
        self._tasks: set[asyncio.Task[None]] = set()
        self._watch = store.watch_link(self._on_link)
        self.restored_at = clock.now()
        """When the present connection to the coordinator was made."""

    async def begin(self) -> None:
        """Create the nodes in this session. Nodes of an earlier session of this daemon are replaced in one
        transaction.
        """
        for path, value in self._marks.items():
            try:
                await self._store.create(path, value, ephemeral=True)
            except NodeExists:
                await self._store.commit([Delete(path), Create(path, value, ephemeral=True)])

    def close(self) -> None:
        """Stop; the nodes stay until the session ends."""
        self._watch.close()

    def _on_link(self, link: Link) -> None:
        if link is Link.CONNECTED:
            self.restored_at = self._clock.now()
            self._tasks.add(task := asyncio.ensure_future(self._begin_again()))
            task.add_done_callback(self._tasks.discard)

    async def _begin_again(self) -> None:
        with contextlib.suppress(StoreUnavailable, StoreRefused):  # the link changes again, and this is called again
            nodes = [await self._store.read(path) for path in self._marks]
            if any(node is None or node.owner != self._store.session for node in nodes):
                await self.begin()
