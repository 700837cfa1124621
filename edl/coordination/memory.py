"""The store port in memory: a verified twin of ZooKeeper, for tests and for a job of one worker without a coordinator.

Owns: `MemoryServer`, a tree and its sessions with the faults a test may plan, and `MemoryStore`, one session's view.
Does not own: what operations do to the tree (`tree`), nor the promises, which are the port's: `tests/contract` runs one
suite on this and on the real server.

Everything lives on one event loop. A session that expires is followed by a new one, as with the real client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

from edl.coordination.store import (
    ANY,
    Create,
    Delete,
    Link,
    Op,
    StoredNode,
    Watch,
    Write,
    check_ops,
    check_path,
    check_size,
    parent_of,
)
from edl.coordination.tree import ROOT, Attempt, Entry
from edl.errors import Fenced, StoreUnavailable


class MemoryServer:
    """The tree, its sessions, and the faults that a test may plan."""

    def __init__(self) -> None:
        self._tree: dict[str, Entry] = {"/": ROOT}
        self._stores: dict[int, MemoryStore] = {}  # by session, of all there ever were
        self._alive: set[int] = set()
        self._stamp = 0

    def connect(self) -> MemoryStore:
        """A new session."""
        return MemoryStore(self)

    def suspend(self, session: int) -> None:
        """Cut a session's connection; the session stays alive."""
        self._stores[session]._move(Link.SUSPENDED)

    def resume(self, session: int) -> None:
        """Mend the connection; a session that expired behind the cut is lost now, and replaced."""
        self._stores[session]._reconnect()

    def expire(self, session: int) -> None:
        """End a session. Its client hears of it and gets a new one: at once, or at `resume` if it is cut off."""
        store = self._stores[session]
        self._end(session)
        if store.link is Link.CONNECTED:
            store._move(Link.SUSPENDED)
            store._reconnect()

    def drop_reply(self, session: int) -> None:
        """Carry out the session's next change, but lose its answer with the connection, which then comes back."""
        self._stores[session]._drops_reply = True

    def _open(self, store: MemoryStore) -> int:
        session = len(self._stores) + 1
        self._stores[session] = store
        self._alive.add(session)
        return session

    def _end(self, session: int) -> None:
        self._alive.discard(session)
        attempt = self._attempt(session)
        attempt.drop_session()
        self._accept(attempt)

    def _attempt(self, session: int) -> Attempt:
        return Attempt(self._tree, self._stamp + 1, session)

    def _accept(self, attempt: Attempt) -> None:
        self._stamp += 1
        self._tree = attempt.tree
        for session in self._alive:
            self._stores[session]._changed(attempt.changed)


class MemoryStore:
    """One session with a `MemoryServer`; see `edl.coordination.store.Store` for every promise."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server
        self._session = server._open(self)
        self._link = Link.CONNECTED
        self._closed = False
        self._drops_reply = False
        self._watches: dict[str, set[_Watch]] = {}
        self._link_watches: list[_LinkWatch] = []

    @property
    def link(self) -> Link:
        return self._link

    @property
    def session(self) -> int:
        return self._session

    async def read(self, path: str) -> StoredNode | None:
        check_path(path)
        tree = await self._reach()
        return tree[path].node if path in tree else None

    async def children(self, path: str) -> tuple[str, ...]:
        check_path(path)
        tree = await self._reach()
        return tuple(sorted(tree[path].children)) if path in tree else ()

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequence: bool = False, parents: bool = True
    ) -> str:
        check_path(path)
        check_size(path, len(value))
        tree = await self._reach()
        missing: list[Op] = []
        above = parent_of(path)
        while parents and above not in tree:
            missing.insert(0, Create(above))
            above = parent_of(above)
        results = self._change([*missing, Create(path, value, ephemeral, sequence)])
        return cast("str", results[-1])

    async def write(self, path: str, value: bytes, version: int = ANY) -> int:
        check_path(path)
        check_size(path, len(value))
        await self._reach()
        (new_version,) = self._change([Write(path, value, version)])
        return cast("int", new_version)

    async def delete(self, path: str, version: int = ANY) -> None:
        check_path(path)
        await self._reach()
        self._change([Delete(path, version)])

    async def commit(self, ops: Sequence[Op], *, fence: str | None = None) -> tuple[str | int | None, ...]:
        check_ops(ops)
        tree = await self._reach()
        if fence is not None and fence not in tree:
            raise Fenced(f"the reign is over: {fence} is gone")
        return tuple(self._change(ops))

    def watch(self, path: str, wake: Callable[[], None]) -> Watch:
        check_path(path)
        return _Watch(wake, self._watches.setdefault(path, set()))

    def watch_link(self, wake: Callable[[Link], None]) -> Watch:
        return _LinkWatch(wake, self._link_watches)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._server._end(self._session)
            self._move(Link.LOST)

    # ------------------------------------------------------------------------------------------------ inside

    async def _reach(self) -> dict[str, Entry]:
        await asyncio.sleep(0)  # a real store always lets others run, so that tests meet the same interleavings
        if self._closed:
            raise StoreUnavailable("the store is closed")
        if self._link is not Link.CONNECTED or self._session not in self._server._alive:
            raise StoreUnavailable("not connected to the store")
        return self._server._tree

    def _change(self, ops: Sequence[Op]) -> list[str | int | None]:
        attempt = self._server._attempt(self._session)
        results = [attempt.apply(op) for op in ops]
        self._server._accept(attempt)
        if self._drops_reply:
            self._drops_reply = False
            self._move(Link.SUSPENDED)
            asyncio.get_running_loop().call_soon(self._reconnect)
            raise StoreUnavailable("the connection broke before the answer came")
        return results

    def _changed(self, paths: set[str]) -> None:
        if self._link is Link.CONNECTED:
            for path in paths & self._watches.keys():
                for watch in self._watches[path]:
                    watch.wake_soon()

    def _move(self, link: Link) -> None:
        if self._link is not link:
            self._link = link
            for watch in list(self._link_watches):
                if watch in self._link_watches:  # not closed by one before it
                    watch.wake(link)

    def _reconnect(self) -> None:
        if self._closed:
            return
        if self._session not in self._server._alive:
            self._move(Link.LOST)
            self._session = self._server._open(self)
        self._move(Link.CONNECTED)
        for watches in self._watches.values():
            for watch in watches:
                watch.wake_soon()


class _Watch:
    def __init__(self, wake: Callable[[], None], siblings: set[_Watch]) -> None:
        self._wake = wake
        self._siblings = siblings
        self._due: asyncio.Handle | None = None
        siblings.add(self)

    def wake_soon(self) -> None:
        if self._due is None:
            self._due = asyncio.get_running_loop().call_soon(self._fire)

    def _fire(self) -> None:
        self._due = None
        self._wake()

    def close(self) -> None:
        self._siblings.discard(self)
        if self._due is not None:
            self._due.cancel()
            self._due = None


class _LinkWatch:
    def __init__(self, wake: Callable[[Link], None], siblings: list[_LinkWatch]) -> None:
        self.wake = wake
        self._siblings = siblings
        siblings.append(self)

    def close(self) -> None:
        if self in self._siblings:
            self._siblings.remove(self)
