"""Lasting watches over etcd's watches.

Owns: which keys show a change of a node or of its list of children, and from which revision on they are watched. Does
not own: the stream's connection (`etcd_session`), nor what the caller does after a wake.

A watch of the port is three of etcd's: on the node's own key; on its count of children, which every creation below
changes; and on removals among its children, without the values. So no child's value is ever sent for a watch.

Each of them begins with the revision after the newest that this client has seen. So it does not matter when etcd
registers the watch: changes after the call of `watch` are reported, and earlier changes are in any later read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any, Final

from edl.coordination.etcd.etcd_connection import received, sent
from edl.coordination.etcd.etcd_messages import (
    DELETED,
    NO_PUTS,
    WatchCancelRequest,
    WatchCreateRequest,
    WatchRequest,
    WatchResponse,
)
from edl.coordination.etcd.etcd_transactions import KeyLayout
from edl.coordination.tree_store import MergingWatch
from edl.errors import StoreUnavailable

logger = logging.getLogger("edl")

_SLOTS: Final = 4
"""An id of etcd's watch is the number of the port's watch, times four, plus 1 to 3 for its three watches in etcd."""
_SESSION: Final = 1


class Watches:
    """The watches of a store; they are registered with etcd while there is a connection."""

    def __init__(self, layout: KeyLayout, seen: Callable[[], int], session_gone: Callable[[], None]) -> None:
        """Prepare; `seen` returns the newest revision that this client has seen."""
        self._layout = layout
        self._seen = seen
        self._session_gone = session_gone
        self._watches: dict[int, EtcdWatch] = {}
        self._numbers = 0
        self._requests: asyncio.Queue[WatchRequest] | None = None  # None: there is no connection

    def add(self, path: str, wake: Callable[[], None]) -> EtcdWatch:
        self._numbers += 1
        watch = EtcdWatch(self._numbers, path, wake, self)
        self._watches[watch.number] = watch
        self._ask(*self._of(watch, self._seen() + 1))
        return watch

    def drop(self, watch: EtcdWatch) -> None:
        if self._watches.pop(watch.number, None) is not None:
            ids = range(watch.number * _SLOTS + 1, watch.number * _SLOTS + _SLOTS)
            self._ask(*(WatchRequest(cancel_request=WatchCancelRequest(number)) for number in ids))

    def attach(self, session: int) -> None:
        """Register all watches on a new connection, and wake all callers to read again."""
        self._requests = asyncio.Queue()
        start = self._seen() + 1
        key = self._layout.session(session)
        self._ask(_create(key, b"", start, _SESSION))
        for watch in self._watches.values():
            self._ask(*self._of(watch, start))
            watch.wake_soon()

    def detach(self) -> None:
        self._requests = None

    async def serve(self, stream: Any) -> None:
        """Serve the watches until the stream ends, by StoreUnavailable."""
        async with asyncio.TaskGroup() as both:
            both.create_task(self._send(stream))
            both.create_task(self._receive(stream))

    async def _send(self, stream: Any) -> None:
        assert self._requests is not None
        requests = self._requests
        while True:
            await sent(stream, await requests.get())

    async def _receive(self, stream: Any) -> None:
        while True:
            self._heard(await received(stream))

    def _heard(self, answer: WatchResponse) -> None:
        watch = self._watches.get(answer.watch_id // _SLOTS)
        if answer.watch_id == _SESSION:
            if answer.canceled or any(event.type == DELETED for event in answer.events):
                self._session_gone()
        elif answer.watch_id < 0 and answer.canceled:  # etcd does not say which watch it refuses
            raise StoreUnavailable(f"the coordinator refuses a watch: {answer.cancel_reason}")
        elif watch is not None and answer.canceled:
            self._ended(watch, answer)
        elif watch is not None and answer.events:
            watch.wake_soon()

    def _ended(self, watch: EtcdWatch, answer: WatchResponse) -> None:
        if answer.compact_revision:
            # etcd has compacted earlier changes; the wake makes up for them. The id is in use until it is cancelled.
            cancel = WatchRequest(cancel_request=WatchCancelRequest(answer.watch_id))
            self._ask(cancel, self._one(watch, answer.watch_id % _SLOTS, answer.compact_revision))
            watch.wake_soon()
        elif answer.created or answer.cancel_reason:  # else etcd has answered our own cancel
            raise StoreUnavailable(f"the coordinator ends a watch of {watch.path}: {answer.cancel_reason}")

    def _of(self, watch: EtcdWatch, start: int) -> Iterator[WatchRequest]:
        return (self._one(watch, slot, start) for slot in range(1, _SLOTS))

    def _one(self, watch: EtcdWatch, slot: int, start: int) -> WatchRequest:
        number = watch.number * _SLOTS + slot
        if slot == 1:
            return _create(self._layout.node(watch.path), b"", start, number)
        if slot == 2:
            return _create(self._layout.count(watch.path), b"", start, number)
        first, end = self._layout.children(watch.path)
        return _create(first, end, start, number, filters=(NO_PUTS,))

    def _ask(self, *requests: WatchRequest) -> None:
        if self._requests is not None:
            for request in requests:
                self._requests.put_nowait(request)


def _create(key: bytes, end: bytes, start: int, number: int, filters: tuple[int, ...] = ()) -> WatchRequest:
    return WatchRequest(create_request=WatchCreateRequest(key, end, start, filters, number))


class EtcdWatch(MergingWatch):
    """A lasting watch of one node and of the list of its children."""

    def __init__(self, number: int, path: str, wake: Callable[[], None], all_watches: Watches) -> None:
        super().__init__(wake)
        self.number = number
        self.path = path
        self._all = all_watches

    def close(self) -> None:
        self._all.drop(self)
        super().close()
