"""A session with etcd: a lease that is kept alive over one connection at a time.

Owns: connecting and reconnecting, the lease, the link's state, and noticing that a server was wiped or restored; and
lasting watches. Does not own: reads and writes over the connection (`etcd_store`).

A session is a lease and a key that goes with it. Every write of the store compares that key, so that no write is
accepted once the session is over, as in ZooKeeper; and the key's removal is watched, so that the end of the session is
noticed at once.

Why the end is noticed in time: a sign of life is sent every third of the time-out, and its answer awaited for as long.
So a silent server is noticed after two thirds, counted from the last sign that was answered, when the lease has a third
to go. A process that was paused for longer compares the clock before it trusts its link.

A watch of the port is three of etcd's: on the node's own key; on its count of children, which every creation below
changes; and on removals among its children, without the values. So no child's value is ever sent for a watch.

Each of them begins with the revision after the newest that this client has seen. So it does not matter when etcd
registers the watch: changes after the call of `watch` are reported, and earlier changes are in any later read.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
from collections.abc import Callable, Iterator
from typing import Any, Final

from edl.coordination.coordinator_settings import Coordinator
from edl.coordination.dialing import RECONNECT_MAX_S, STOP_S, patience_s
from edl.coordination.etcd.etcd_connection import EtcdConnection, LeaseGone, received, sent
from edl.coordination.etcd.etcd_messages import (
    DELETED,
    LEASE_GRANT,
    LEASE_KEEP_ALIVE,
    LEASE_REVOKE,
    NO_PUTS,
    TXN,
    WATCH,
    Compare,
    LeaseGrantRequest,
    LeaseKeepAliveRequest,
    LeaseKeepAliveResponse,
    LeaseRevokeRequest,
    PutRequest,
    RangeRequest,
    RequestOp,
    ResponseHeader,
    TxnRequest,
    WatchCancelRequest,
    WatchCreateRequest,
    WatchRequest,
    WatchResponse,
)
from edl.coordination.etcd.etcd_transactions import KeyLayout
from edl.coordination.store import Link
from edl.coordination.tree_store import MergingWatch
from edl.errors import EdlError, StoreUnavailable

_SLOTS: Final = 4
"""An id of etcd's watch is the number of the port's watch, times four, plus 1 to 3 for its three watches in etcd."""
_SESSION: Final = 1


class Watches:
    """The watches of a store; they are registered with etcd while there is a connection."""

    def __init__(self, layout: KeyLayout, seen: Callable[[], int], session_gone: Callable[[], None]) -> None:
        """`seen` returns the newest revision that this client has seen."""
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


logger = logging.getLogger("edl")

_FIRST_PAUSE_S = 0.05
_BEATS = 3  # signs of life in a session's time-out

_NEVER_TRUSTED = float("-inf")


class Session:
    """A sequence of leases: when one has expired, another follows."""

    def __init__(
        self, coordinator: Coordinator, layout: KeyLayout, timeout_s: float, moved: Callable[[Link], None]
    ) -> None:
        self._coordinator = coordinator
        self._layout = layout
        self._timeout_s = timeout_s
        self._tell = moved
        self._loop = asyncio.get_running_loop()
        self._link = Link.LOST
        self._lease, self._over = 0, True
        self._trusted_until = _NEVER_TRUSTED
        self._cluster, self._revision = 0, 0  # the cluster, and its newest revision seen here
        self._connection: EtcdConnection | None = None
        self._complaint = ""
        self._ending = False
        self._gone = asyncio.Event()
        self._first: asyncio.Future[None] = self._loop.create_future()  # the first session, or why there is none
        self._running: asyncio.Task[None] | None = None
        self.watches = Watches(layout, lambda: self._revision, self.gone)

    @property
    def id(self) -> int:
        return self._lease

    @property
    def link(self) -> Link:
        paused = self._loop.time() >= self._trusted_until  # this process was paused, and the lease may be over by now
        if self._link is Link.CONNECTED and (paused or self._gone.is_set()):
            return Link.SUSPENDED
        return self._link

    @property
    def connection(self) -> EtcdConnection:
        """Raises StoreUnavailable while there is no connection that can be trusted."""
        if self._connection is None or self.link is not Link.CONNECTED:
            raise StoreUnavailable(f"not connected to the coordinator {self._coordinator.hosts}")
        return self._connection

    async def begin(self) -> None:
        """Wait for the first session. Raises AccessDenied, and other errors that a retry would not mend."""
        self._running = self._loop.create_task(self._run(), name="session with etcd")
        await self._first

    async def end(self) -> None:
        """Revoke the lease, if a server answers in time, and close the connection."""
        self._ending = True
        if self._running is not None:
            connection = self._connection  # if it is gone, the lease expires by itself
            if connection is not None and self._lease:
                with contextlib.suppress(EdlError, TimeoutError):
                    async with asyncio.timeout(STOP_S):
                        await connection.call(LEASE_REVOKE, LeaseRevokeRequest(self._lease), timeout_s=STOP_S)
            self._running.cancel()
            await asyncio.wait({self._running}, timeout=STOP_S)
        self._move(Link.LOST)

    def saw(self, header: ResponseHeader) -> None:
        """Note the newest revision, from each answer."""
        self._cluster, self._revision = header.cluster_id, max(self._revision, header.revision)

    def gone(self) -> None:
        """Give up the connection because the lease has expired; the next connection checks that."""
        if not self._ending:
            self._gone.set()

    # ------------------------------------------------------------------------------------------------ connecting

    async def _run(self) -> None:
        pause_s = 0.0
        for address in itertools.cycle(self._coordinator.endpoints):
            await asyncio.sleep(pause_s)
            if self._ending:
                return
            served = await self._visit(address)
            pause_s = _FIRST_PAUSE_S if served else min(RECONNECT_MAX_S, max(_FIRST_PAUSE_S, 1.5 * pause_s))

    async def _visit(self, address: tuple[str, int]) -> bool:
        """Serve the session on one connection until the connection ends; return True if there was a session."""
        patience = patience_s(self._timeout_s)
        connection = EtcdConnection(address, self._coordinator, patience_s=patience)
        served = False
        try:
            async with asyncio.timeout(2 * patience):
                await connection.open()
                await self._settle(connection, patience)
            self._connection, served, self._complaint = connection, True, ""
            self._gone.clear()
            self.watches.attach(self._lease)
            self._move(Link.CONNECTED)
            await self._stay(connection)
        except* (StoreUnavailable, OSError) as errors:
            logger.info("the coordinator at %s:%s: %s", *address, _innermost(errors))
        except* EdlError as errors:
            self._complain(_innermost(errors))
        finally:
            self._connection = None
            self.watches.detach()
            if served:
                self._move(Link.SUSPENDED)
            await connection.close()
        return served

    def _complain(self, error: BaseException) -> None:
        if not self._first.done():
            self._first.set_exception(error)
        elif str(error) != self._complaint:  # once, not at each attempt
            self._complaint = str(error)
            logger.warning("the coordinator %s: %s", self._coordinator.hosts, error)

    async def _settle(self, connection: EtcdConnection, patience: float) -> None:
        """Resume the session, or begin another."""
        asked_at = self._loop.time()
        if not self._over and await self._lives(connection, patience):
            self._trusted_until = asked_at + self._timeout_s
            return
        self._over = True
        self._move(Link.LOST)
        await self._begin_another(connection, patience)

    async def _lives(self, connection: EtcdConnection, patience: float) -> bool:
        """Tell whether this server still has the session, and all changes that were seen in it."""
        look = RequestOp(request_range=RangeRequest(self._layout.session(self._lease)))
        answer = await connection.call(TXN, TxnRequest(success=(look,)), timeout_s=patience)
        restored = answer.header.revision < self._revision or answer.header.cluster_id != self._cluster
        if restored:  # from a backup, or with empty data: the server lacks changes that were seen here
            self._revision, self._cluster = answer.header.revision, answer.header.cluster_id
        self.saw(answer.header)
        found = answer.responses[0].response_range
        if restored or found is None or not found.kvs:
            return False
        stream = connection.stream(LEASE_KEEP_ALIVE)
        return (await self._beat(stream)).ttl > 0

    async def _begin_another(self, connection: EtcdConnection, patience: float) -> None:
        asked_at = self._loop.time()
        ttl = max(1, math.ceil(self._timeout_s))
        lease = (await connection.call(LEASE_GRANT, LeaseGrantRequest(ttl), timeout_s=patience)).id
        put = RequestOp(request_put=PutRequest(self._layout.session(lease), lease=lease))
        root = self._layout.node("/")
        begin = TxnRequest((Compare(key=root, target=1),), (put, _founded(root)), (put,))
        answer = await connection.call(TXN, begin, timeout_s=patience)
        self._revision = 0  # the server may have been wiped since the last session, so older revisions do not count
        self.saw(answer.header)
        self._lease, self._over = lease, False
        self._trusted_until = asked_at + self._timeout_s

    # ---------------------------------------------------------------------------------------------------- staying

    async def _stay(self, connection: EtcdConnection) -> None:
        """Keep the session alive and its watches served until the connection breaks, or the session is over."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._beat_on(connection))
            tasks.create_task(self.watches.serve(connection.stream(WATCH)))
            tasks.create_task(self._until_gone())

    async def _until_gone(self) -> None:
        await self._gone.wait()
        raise LeaseGone("the session with the coordinator is over")

    async def _beat_on(self, connection: EtcdConnection) -> None:
        stream = connection.stream(LEASE_KEEP_ALIVE)
        while True:
            asked_at = self._loop.time()
            if (await self._beat(stream)).ttl <= 0:
                raise LeaseGone("the session with the coordinator is over")
            # `link` was SUSPENDED meanwhile, because the answer came late: the watchers must learn of it.
            if self._loop.time() >= self._trusted_until:
                raise StoreUnavailable("this process stood still for as long as a session lasts")
            self._trusted_until = asked_at + self._timeout_s
            await asyncio.sleep(asked_at + self._timeout_s / _BEATS - self._loop.time())

    async def _beat(self, stream: object) -> LeaseKeepAliveResponse:
        async with asyncio.timeout(self._timeout_s / _BEATS):
            await sent(stream, LeaseKeepAliveRequest(self._lease))
            answer: LeaseKeepAliveResponse = await received(stream)
        self._revision = max(self._revision, answer.header.revision)
        return answer

    def _move(self, link: Link) -> None:
        if link is self._link:
            return
        self._link = link
        if link is Link.CONNECTED and not self._first.done():
            self._first.set_result(None)
        self._tell(link)


def _founded(root: bytes) -> RequestOp:
    """Return the put that creates the root node; the first session makes it."""
    return RequestOp(request_put=PutRequest(root, b"0 0\n"))


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
