"""The store port in memory: a verified equivalent of ZooKeeper, for tests and for a job of one worker without a
coordinator.

Owns: `MemoryServer`, a state and its sessions with the faults that a test may plan, and `MemoryStore`, one session's
view. Does not own: the effect of operations (`store_state`, `tree`), nor the guarantees, which are the port's:
`tests/contract` runs one suite on this and on the real servers. The embedded coordinator (`embedded`) has the same
state, in a process of its own.

Everything runs on one event loop. A session that expires is followed by a new one, as with the real client.
"""

from __future__ import annotations

import asyncio
import math

from edl.coordination.store import Link, Op, StoredNode
from edl.coordination.store_state import PreparedRecord, Results, SessionEnded, SessionOpened, StoreState
from edl.coordination.tree_store import TreeStore
from edl.errors import StoreUnavailable


class MemoryServer:
    """Keep the state, and the faults that a test may plan."""

    def __init__(self) -> None:
        self._state = StoreState()
        self._stores: dict[int, MemoryStore] = {}  # by session, ended ones included

    def connect(self) -> MemoryStore:
        return MemoryStore(self)

    def suspend(self, session: int) -> None:
        """Cut a session's connection; the session stays alive."""
        self._stores[session]._move(Link.SUSPENDED)

    def resume(self, session: int) -> None:
        """Restore the connection; a session that expired meanwhile is lost now, and replaced."""
        self._stores[session]._reconnect()

    def expire(self, session: int) -> None:
        """End a session. Its client gets a new session: at once, or at `resume` if its connection is cut."""
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
        self._accept(self._state.prepare(SessionOpened(session, math.inf)))
        return session

    def _end(self, session: int) -> None:
        self._accept(self._state.prepare(SessionEnded(session)))

    def _accept(self, prepared: PreparedRecord) -> None:
        self._state.accept(prepared)
        for session in self._state.sessions:
            store = self._stores[session]
            if store.link is Link.CONNECTED:
                store._wake(prepared.changes)


class MemoryStore(TreeStore):
    """A store with one session at a `MemoryServer`; `edl.coordination.store.Store` has every guarantee."""

    def __init__(self, server: MemoryServer) -> None:
        super().__init__(Link.CONNECTED)
        self._server = server
        self._session_id = server._open(self)
        self._drops_reply = False

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._server._end(self._session_id)
            self._move(Link.LOST)

    async def _read(self, path: str) -> StoredNode | None:
        tree = (await self._reach()).tree
        return tree[path].node if path in tree else None

    async def _children(self, path: str) -> tuple[str, ...]:
        return (await self._reach()).children(path)

    async def _commit(self, ops: tuple[Op, ...], *, fence: str | None = None, parents: bool = False) -> Results:
        state = await self._reach()
        prepared = state.prepare_commit(self._session_id, ops, fence=fence, parents=parents)
        self._server._accept(prepared)
        if self._drops_reply:
            self._drops_reply = False
            self._move(Link.SUSPENDED)
            asyncio.get_running_loop().call_soon(self._reconnect)
            raise StoreUnavailable("the connection broke before the answer came")
        return prepared.results

    async def _reach(self) -> StoreState:
        await asyncio.sleep(0)  # a real store always lets others run, so that tests meet the same interleavings
        if self._closed:
            raise StoreUnavailable("the store is closed")
        if self._link is not Link.CONNECTED or self._session_id not in self._server._state.sessions:
            raise StoreUnavailable("not connected to the store")
        return self._server._state

    def _reconnect(self) -> None:
        if self._closed:
            return
        if self._session_id not in self._server._state.sessions:
            self._move(Link.LOST)
            self._session_id = self._server._open(self)
        self._move(Link.CONNECTED)
        self._wake(self._watches)
