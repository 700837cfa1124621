"""Lasting watches over ZooKeeper's one-time watches.

Owns: re-arming after each event and each reconnect. Does not own: what the caller does after a wake.

The order matters: a watch is armed again *before* any waiting task is woken. The request to arm is then in kazoo's
queue ahead of any read that the wake causes, and a session's requests are served in order, so that no change is missed
in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kazoo.client import KazooClient
from kazoo.protocol.states import EventType

from edl.coordination.kazoo_client import watcher
from edl.coordination.store import Link
from edl.coordination.tree_store import MergingWatch


class NodeWatch(MergingWatch):
    """A lasting watch of one node and of the list of its children."""

    def __init__(self, at: str, wake: Callable[[], None], siblings: list[NodeWatch]) -> None:
        super().__init__(wake)
        self._at = at
        self._siblings = siblings
        self._client: KazooClient | None = None
        self._open = True
        # Always the same function object: kazoo keeps watches in sets, so that arming twice is arming once.
        self._watcher = watcher(asyncio.get_running_loop(), self._event_came)
        siblings.append(self)

    def arm(self, client: KazooClient) -> None:
        """Watch on this client. That has no effect while it is not connected, for which `moved` makes up."""
        self._client = client
        self._arm_value()
        self._arm_children()

    def moved(self, client: KazooClient, link: Link) -> None:
        """Renew the watches on a new connection, because they ended with the old one."""
        if link is Link.CONNECTED:
            self.arm(client)
            self.wake_soon()

    def close(self) -> None:
        """Close the watch; no wake follows. The server forgets its one-time watch when it fires, or
        with the session.
        """
        if self._open:
            self._open = False
            self._siblings.remove(self)
        super().close()

    def _event_came(self, kind: str) -> None:
        if not self._open or kind == EventType.NONE:  # NONE: the link changed, which `moved` handles
            return
        if kind != EventType.CHILD:
            self._arm_value()
        if kind != EventType.CHANGED:  # a node just created or deleted (and back already, perhaps) counts as both
            self._arm_children()
        self.wake_soon()

    def _arm_value(self) -> None:
        if self._client is not None:
            self._client.exists_async(self._at, self._watcher)

    def _arm_children(self) -> None:
        if self._client is not None:
            self._client.get_children_async(self._at, self._watcher)
