"""The store port on a real ZooKeeper, through kazoo.

Lasting watches are made of ZooKeeper's one-time watches. The order matters: a watch is armed again *before* any waiting
task is woken. The request to arm is then in kazoo's queue ahead of any read that the wake causes, and a session's
requests are served in order, so that no change is missed in between.

Owns: translating the port's calls, replacing a client that no server accepts again, and watches that last. Does not
own: how one client behaves (`kazoo_client`), nor why a server cannot be reached (`connection_diagnosis`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Any, cast

from kazoo.client import KazooClient
from kazoo.protocol.states import EventType

from edl.coordination import kazoo_client
from edl.coordination.coordinator_settings import Coordinator
from edl.coordination.dialing import RECONNECT_MAX_S, STOP_S, CallLimit, explain, patience_s
from edl.coordination.kazoo_client import KAZOO_ERRORS, is_culprit, translate, watcher
from edl.coordination.store import (
    ANY,
    Check,
    Create,
    Delete,
    Link,
    NodeExists,
    NoNode,
    Op,
    StoredNode,
    Watch,
    Write,
    check_ops,
    check_path,
    check_size,
    parent_of,
)
from edl.coordination.tree_store import LinkWatch, MergingWatch, tell_link
from edl.errors import ConfigError, Fenced, StoreUnavailable


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


_IN_FLIGHT = 64
"""kazoo wakes its thread through a socket pair that takes some 270 unread bytes; beyond that a call blocks the loop."""

_STUCK_SESSIONS = 3
"""After this many session time-outs without a connection, a new client is tried."""

_OPEN_RETRY_S = 0.05


async def connect(
    settings: Coordinator, session_timeout_s: float, *, connect_timeout_s: float = 10.0
) -> ZookeeperStore:
    """Open a store with a new session, whose time-out is `session_timeout_s`.

    The server limits that to its own bounds (2 to 20 ticks unless configured), which kazoo does not report. Raises
    `ConfigError` with one line that names the address and the remedy if there is no session in time.
    """
    try:
        store = ZookeeperStore(settings, session_timeout_s)
    except OSError as error:
        raise ConfigError(f"the TLS settings EDL_COORDINATOR_TLS_* do not work: {error.strerror or error}") from error
    try:
        async with asyncio.timeout(connect_timeout_s):
            await store._open()
    except TimeoutError as error:
        await store.close()
        raise ConfigError(f"{await explain(settings)} (tried for {connect_timeout_s:g} s)") from error
    except BaseException:
        await store.close()
        raise
    return store


class ZookeeperStore:
    """A store with one session at a time at ZooKeeper; `edl.coordination.store.Store` has every guarantee."""

    def __init__(self, settings: Coordinator, session_timeout_s: float) -> None:
        self._settings = settings
        self._session_timeout_s = session_timeout_s
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._chroot = settings.chroot
        self._turns = CallLimit(_IN_FLIGHT, session_timeout_s)
        self._link = Link.LOST
        self._session = 0
        self._connected = asyncio.Event()
        self._watches: list[NodeWatch] = []
        self._link_watches: list[LinkWatch] = []
        self._replacing: asyncio.Task[None] | None = None
        self._closed = False
        self._client = kazoo_client.make_client(settings, session_timeout_s)
        kazoo_client.listen(self._client, self._loop, self._moved)

    @property
    def link(self) -> Link:
        if self._link is Link.CONNECTED and not self._client.connected:
            return Link.SUSPENDED  # already known to kazoo's thread, and on its way to our loop
        return self._link

    @property
    def session(self) -> int:
        return self._session

    # ------------------------------------------------------------------------------------------------- the port

    async def read(self, path: str) -> StoredNode | None:
        at = self._absolute(path)
        try:
            value, stat = await self._call(path, lambda client: client.get_async(at))
        except NoNode:
            return None
        return StoredNode(value, stat.version, stat.czxid, stat.ephemeralOwner)

    async def children(self, path: str) -> tuple[str, ...]:
        at = self._absolute(path)
        try:
            names = await self._call(path, lambda client: client.get_children_async(at))
        except NoNode:
            return ()
        return tuple(sorted(names))

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequence: bool = False, parents: bool = True
    ) -> str:
        at = self._absolute(path)
        check_size(path, len(value))

        def start(client: KazooClient) -> Any:
            return client.create_async(at, value, ephemeral=ephemeral, sequence=sequence)

        try:
            created = await self._call(path, start)
        except NoNode:
            if not parents:
                raise
            await self._ensure(parent_of(at))
            created = await self._call(path, start)
        return self._relative(created)

    async def write(self, path: str, value: bytes, version: int = ANY) -> int:
        at = self._absolute(path)
        check_size(path, len(value))
        stat = await self._call(path, lambda client: client.set_async(at, value, version))
        return cast("int", stat.version)

    async def delete(self, path: str, version: int = ANY) -> None:
        at = self._absolute(path)
        await self._call(path, lambda client: client.delete_async(at, version))

    async def commit(self, ops: Sequence[Op], *, fence: str | None = None) -> tuple[str | int | None, ...]:
        check_ops(ops)
        everything: list[Op] = [*([Check(fence)] if fence is not None else []), *ops]
        path = everything[0].path if everything else "/"
        results = await self._call(path, lambda client: self._transaction(client, everything))
        for op, result in zip(everything, results, strict=True):
            if is_culprit(result):
                if fence is not None and op is everything[0]:
                    raise Fenced(f"the reign is over: {fence} is gone")
                raise translate(result, op.path, op)
        return tuple(map(self._result, ops, results[len(everything) - len(ops) :]))

    def watch(self, path: str, wake: Callable[[], None]) -> Watch:
        watch = NodeWatch(self._absolute(path), wake, self._watches)
        watch.arm(self._client)
        return watch

    def watch_link(self, wake: Callable[[Link], None]) -> Watch:
        return LinkWatch(wake, self._link_watches)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._replacing is not None:
            self._replacing.cancel()
        if os.getpid() == self._pid:  # a forked child has the client but not its threads, and no business with either
            await kazoo_client.stop(self._client, timeout_s=STOP_S)
        self._moved(self._client, Link.LOST, self._session)

    # --------------------------------------------------------------------------------------------------- calling

    async def _call(self, path: str, start: Callable[[KazooClient], Any]) -> Any:
        """Carry out one request of kazoo's; every error comes out as an error of the port."""
        try:
            async with self._turns.call(self._settings.hosts, closed=self._closed):
                # kazoo would queue the request, and send it after the caller gave up.
                if self.link is not Link.CONNECTED:
                    raise StoreUnavailable(f"not connected to the coordinator {self._settings.hosts}")
                return await kazoo_client.settle(start(self._client))
        except KAZOO_ERRORS as error:
            raise translate(error, path) from error

    async def _ensure(self, at: str) -> None:
        """Create an empty node and its missing parents. An existing node is left alone, because this client may have no
        access to it.
        """
        try:
            await self._call(at, lambda client: client.create_async(at))
        except NodeExists:
            return
        except NoNode:
            await self._ensure(parent_of(at))
            await self._ensure(at)

    def _transaction(self, client: KazooClient, ops: Sequence[Op]) -> Any:
        transaction = client.transaction()
        for op in ops:
            at = self._absolute(op.path)
            match op:
                case Create():
                    transaction.create(at, op.value, ephemeral=op.ephemeral, sequence=op.sequence)
                case Write():
                    transaction.set_data(at, op.value, op.version)
                case Delete():
                    transaction.delete(at, op.version)
                case Check():
                    transaction.check(at, op.version)
        return transaction.commit_async()

    def _result(self, op: Op, result: Any) -> str | int | None:
        match op:
            case Create():
                return self._relative(result)
            case Write():
                return cast("int", result.version)
            case Delete() | Check():
                return None

    def _absolute(self, path: str) -> str:
        check_path(path)
        return (self._chroot + path).rstrip("/") or "/"

    def _relative(self, at: str) -> str:
        return at.removeprefix(self._chroot) or "/"

    # ------------------------------------------------------------------------------------------------ connecting

    async def _open(self) -> None:
        """Wait for a first session on which a request succeeds."""
        self._client.start_async()
        await self._connected.wait()
        while True:
            try:
                await self._call(
                    "/", lambda client: client.exists_async("/")
                )  # refused if the server wants credentials
                if self._chroot:
                    await self._ensure(self._chroot)
                return
            except StoreUnavailable:  # the first connection may break as any other
                await asyncio.sleep(_OPEN_RETRY_S)

    def _moved(self, client: KazooClient, link: Link, session: int) -> None:
        if client is not self._client or link is self._link:  # from a spare client, or from a dropped one
            return
        self._link = link
        if link is Link.CONNECTED:
            self._session = session
            self._connected.set()
            if self._replacing is not None:
                self._replacing.cancel()
                self._replacing = None
        elif self._replacing is None and not self._closed:
            self._replacing = self._loop.create_task(self._replace_client(), name="replace the client")
        for watch in list(self._watches):
            watch.moved(client, link)
        tell_link(self._link_watches, link)

    async def _replace_client(self) -> None:
        """Replace the client by a new one if a server is there but no longer accepts the old client.

        A server whose data were wiped refuses a client that "has seen zxid ..." and kazoo would retry for ever. But
        after an outage of the service a session goes on, so the success of a new client is no reason to drop the old
        one: the old one has the time of a few attempts to come back before it is given up.
        """
        await asyncio.sleep(_STUCK_SESSIONS * self._session_timeout_s)
        unneeded = spare = kazoo_client.make_client(self._settings, self._session_timeout_s)
        try:
            await self._wait_settled(spare)
            unneeded, self._client, self._replacing = self._client, spare, None
            self._moved(spare, Link.LOST, self._session)
            self._moved(spare, Link.CONNECTED, kazoo_client.session_of(spare))
        finally:
            kazoo_client.abandon(unneeded)

    async def _wait_settled(self, spare: KazooClient) -> None:
        arrived = asyncio.Event()

        def moved(client: KazooClient, link: Link, session: int) -> None:
            arrived.set()
            self._moved(client, link, session)

        kazoo_client.listen(spare, self._loop, moved)
        spare.start_async()
        while not spare.connected:
            arrived.clear()
            await arrived.wait()
            await asyncio.sleep(2 * (patience_s(self._session_timeout_s) + RECONNECT_MAX_S))
