"""The store port on the embedded coordinator.

Owns: connecting and reconnecting, the session, and when its link may be trusted. Does not own: the effect of calls,
which the server decides (`embedded_core`), nor how long watches last (`tree_store`).

A sign of life is sent every third of the session's time-out, and its answer awaited for as long, so that a silent
server is noticed before the session can expire. A process that was paused compares the clock before it trusts its link.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

from edl.coordination.coordinator_settings import Coordinator
from edl.coordination.dialing import RECONNECT_MAX_S, STOP_S, CallLimit, explain, patience_s
from edl.coordination.embedded.embedded_core import (
    UNKEPT,
    Answer,
    BeginSession,
    ChildrenListed,
    CommitOps,
    EndSession,
    ListChildren,
    NodeChanged,
    NodeFound,
    OpsDone,
    OpsRefused,
    ReadNode,
    SessionGiven,
    SignOfLife,
    Told,
    UnwatchPath,
    WatchPath,
)
from edl.coordination.store import Link, NodeExists, NoNode, NotEmpty, Op, StoredNode, StoreRefused, VersionConflict
from edl.coordination.store_state import Results, StoreFull
from edl.coordination.tree_store import TreeStore
from edl.errors import ConfigError, EdlError, Fenced, StoreUnavailable, UsageError
from edl.transport.call_errors import PipeClosed
from edl.transport.pipe import Connection, LoopClient

_IN_FLIGHT = 32
"""Concurrent calls: the largest calls and answers together fit into a pipe's bound."""

_BEATS = 3  # signs of life in a session's time-out
_FIRST_PAUSE_S = 0.05

_REFUSALS: dict[str, type[StoreRefused]] = {
    error.__name__: error for error in (NodeExists, NoNode, VersionConflict, NotEmpty)
}
_ERRORS: dict[str, type[EdlError]] = {error.__name__: error for error in (Fenced, UsageError, StoreFull)}


async def connect(settings: Coordinator, session_timeout_s: float, *, connect_timeout_s: float = 10.0) -> EmbeddedStore:
    """Open a store with a new session, which expires after `session_timeout_s` without a sign of life.

    Raises `ConfigError` with one line and the remedy if there is no session in time.
    """
    store = EmbeddedStore(settings, session_timeout_s)
    try:
        async with asyncio.timeout(connect_timeout_s):
            await store._connected.wait()
    except TimeoutError as error:
        await store.close()
        story = store._complaint or await explain(settings)
        raise ConfigError(f"{story} (tried for {connect_timeout_s:g} s)") from error
    except BaseException:
        await store.close()
        raise
    return store


class ChangeUnkept(StoreUnavailable):
    """The coordinator had no room to keep a change, and has not made it."""


class EmbeddedLine:
    """A connection, and its questions that wait for answers."""

    def __init__(self, path: str, changed: Callable[[str], None]) -> None:
        self._client = LoopClient(path, Told, self._heard, self._gone)
        self._changed = changed
        self._connection: Connection | None = None
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self.lost = asyncio.Event()

    async def begin(self, session: int, timeout_s: float) -> int:
        """Connect, and resume this session or begin another; return its number. Raises StoreUnavailable."""
        try:
            self._connection = await self._client.connect()
        except PipeClosed as error:
            raise StoreUnavailable(str(error)) from error
        self._connection.send(BeginSession(session, timeout_s))
        return cast("int", await self._answer(0))

    def say(self, message: EndSession | WatchPath | UnwatchPath) -> None:
        if self._connection is not None:
            self._connection.send(message)

    async def ask(self, question: Callable[[int], SignOfLife | ReadNode | ListChildren | CommitOps]) -> Any:
        """Raises StoreUnavailable when the connection is lost before the answer comes."""
        if self._connection is None or self.lost.is_set():
            raise StoreUnavailable("not connected to the coordinator")
        self._number += 1
        self._connection.send(question(self._number))
        return await self._answer(self._number)

    def hang_up(self) -> None:
        if self._connection is not None:
            self._connection.abort()
        self._end()

    async def _answer(self, number: int) -> Any:
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            return await answer
        finally:
            self._asked.pop(number, None)

    def _heard(self, _: Connection, message: Told) -> None:
        match message:
            case NodeChanged(path):
                self._changed(path)
            case SessionGiven(session):
                self._deliver(0, session)
            case OpsDone() | NodeFound() | ChildrenListed() | OpsRefused():
                self._deliver(message.number, message)

    def _deliver(self, number: int, answer: Answer | int) -> None:
        waiting = self._asked.get(number)
        if waiting is None or waiting.done():  # its caller has given up
            return
        if isinstance(answer, OpsRefused) and answer.why == UNKEPT:
            waiting.set_exception(ChangeUnkept(answer.path))
        else:
            waiting.set_result(answer)

    def _gone(self, _: Connection) -> None:
        self._end()

    def _end(self) -> None:
        self.lost.set()
        for waiting in self._asked.values():
            if not waiting.done():
                waiting.set_exception(StoreUnavailable("the connection to the coordinator broke"))


class EmbeddedStore(TreeStore):
    """A store with one session at a time at the embedded coordinator; `edl.coordination.store.Store` has every
    guarantee.
    """

    def __init__(self, settings: Coordinator, session_timeout_s: float) -> None:
        super().__init__(Link.LOST)
        self._settings = settings
        self._timeout_s = session_timeout_s
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._turns = CallLimit(_IN_FLIGHT, session_timeout_s)
        self._trusted_until = 0.0
        self._connected = asyncio.Event()
        self._complaint = ""
        self._line: EmbeddedLine | None = None  # the connection that has the session
        self._running = self._loop.create_task(self._run(), name="session with the embedded coordinator")

    @property
    def link(self) -> Link:
        return Link.SUSPENDED if self._link is Link.CONNECTED and not self._is_trusted() else self._link

    def _is_trusted(self) -> bool:
        return self._line is not None and not self._line.lost.is_set() and self._loop.time() < self._trusted_until

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if os.getpid() == self._pid:  # a forked child has the connection, but no business with it
            if self._line is not None:
                self._line.say(EndSession(self._session_id))
                await asyncio.wait({self._loop.create_task(self._line.lost.wait())}, timeout=STOP_S)
            self._running.cancel()
            await asyncio.wait({self._running})
        self._move(Link.LOST)

    # ------------------------------------------------------------------------------------------------- the calls

    async def _read(self, path: str) -> StoredNode | None:
        async with self._reached() as line:
            return cast("StoredNode | None", (await line.ask(lambda number: ReadNode(number, path))).node)

    async def _children(self, path: str) -> tuple[str, ...]:
        async with self._reached() as line:
            return cast("tuple[str, ...]", (await line.ask(lambda number: ListChildren(number, path))).names)

    async def _commit(self, ops: tuple[Op, ...], *, fence: str | None = None, parents: bool = False) -> Results:
        async with self._reached() as line:
            answer = await line.ask(lambda number: CommitOps(number, ops, fence, parents))
        if isinstance(answer, OpsRefused):
            raise _refusal(answer, ops)
        return cast("Results", answer.results)

    @asynccontextmanager
    async def _reached(self) -> AsyncIterator[EmbeddedLine]:
        """Yield the connection, with a bound on the calls in flight; every error comes out as an error of the port."""
        async with self._turns.call(self._settings.hosts, closed=self._closed):
            if self._line is None or self.link is not Link.CONNECTED:
                raise StoreUnavailable(f"not connected to the coordinator {self._settings.hosts}")
            yield self._line

    def _begin_watch(self, path: str) -> None:
        if self._line is not None:
            self._line.say(WatchPath(path))

    def _changed(self, path: str) -> None:
        watches = self._watches.get(path)
        if watches:
            self._wake((path,))
        elif self._line is not None:  # all watches of the path were closed since
            self._watches.pop(path, None)
            self._line.say(UnwatchPath(path))

    # ------------------------------------------------------------------------------------------------- connecting

    async def _run(self) -> None:
        pause_s = 0.0
        while not self._closed:
            await asyncio.sleep(pause_s)
            served = await self._visit()
            pause_s = _FIRST_PAUSE_S if served else min(RECONNECT_MAX_S, max(_FIRST_PAUSE_S, 1.5 * pause_s))

    async def _visit(self) -> bool:
        """Serve the session on one connection until the connection is lost; return True if there was a session."""
        line = EmbeddedLine(self._settings.socket, self._changed)
        try:
            asked_at = self._loop.time()
            async with asyncio.timeout(patience_s(self._timeout_s)):
                session = await line.begin(self._session_id, self._timeout_s)
            self._begin(line, session, asked_at)
            await self._beat_on(line)
        except (StoreUnavailable, TimeoutError) as error:
            self._complaint = str(error) if isinstance(error, ChangeUnkept) else ""
        finally:
            served, self._line = line is self._line, None
            line.hang_up()
            if served and not self._closed:
                self._move(Link.SUSPENDED)
        return served

    def _begin(self, line: EmbeddedLine, session: int, asked_at: float) -> None:
        if session != self._session_id:
            self._move(Link.LOST)
        self._line, self._session_id, self._trusted_until = line, session, asked_at + self._timeout_s
        for path in [path for path, watches in self._watches.items() if not watches]:
            del self._watches[path]
        for path in self._watches:
            line.say(WatchPath(path))
        self._move(Link.CONNECTED)
        self._connected.set()
        self._wake(list(self._watches))

    async def _beat_on(self, line: EmbeddedLine) -> None:
        """Send signs of life until the connection is lost, or does not answer in time."""
        ended = self._loop.create_task(line.lost.wait())
        try:
            while not ended.done():
                asked_at = self._loop.time()
                async with asyncio.timeout(self._timeout_s / _BEATS):
                    await line.ask(SignOfLife)
                # `link` was SUSPENDED meanwhile, because the answer came late: the watchers must learn of it.
                if self._loop.time() >= self._trusted_until:
                    return
                self._trusted_until = asked_at + self._timeout_s
                await asyncio.wait({ended}, timeout=asked_at + self._timeout_s / _BEATS - self._loop.time())
        finally:
            ended.cancel()


def _refusal(answer: OpsRefused, ops: tuple[Op, ...]) -> EdlError:
    if answer.why in _REFUSALS:
        return _REFUSALS[answer.why](answer.path, ops[answer.op] if answer.op >= 0 else None)
    return _ERRORS[answer.why](answer.path)
