"""The common part of the stores whose changes are all transactions: calls, watches and the link.

Owns: how the port's calls become transactions, and that watches last and merge. Does not own: reaching the server
(`memory_store`, `embedded.embedded_store`, `etcd.etcd_store`), nor what a transaction does (`store_state`).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
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
)
from edl.coordination.store_state import Results


class TreeStore(ABC):
    """A store with one session; `edl.coordination.store.Store` has every guarantee."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._session_id = 0
        self._closed = False
        self._watches: dict[str, set[TreeWatch]] = {}
        self._link_watches: list[LinkWatch] = []

    @property
    def link(self) -> Link:
        return self._link

    @property
    def session(self) -> int:
        return self._session_id

    async def read(self, path: str) -> StoredNode | None:
        check_path(path)
        return await self._read(path)

    async def children(self, path: str) -> tuple[str, ...]:
        check_path(path)
        return await self._children(path)

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequence: bool = False, parents: bool = True
    ) -> str:
        check_path(path)
        check_size(path, len(value))
        results = await self._commit((Create(path, value, ephemeral, sequence),), parents=parents)
        return cast("str", results[0])

    async def write(self, path: str, value: bytes, version: int = ANY) -> int:
        check_path(path)
        check_size(path, len(value))
        (new_version,) = await self._commit((Write(path, value, version),))
        return cast("int", new_version)

    async def delete(self, path: str, version: int = ANY) -> None:
        check_path(path)
        await self._commit((Delete(path, version),))

    async def commit(self, ops: Sequence[Op], *, fence: str | None = None) -> Results:
        check_ops(ops)
        return await self._commit(tuple(ops), fence=fence)

    def watch(self, path: str, wake: Callable[[], None]) -> Watch:
        check_path(path)
        siblings = self._watches.setdefault(path, set())
        watch = TreeWatch(wake, siblings)
        if len(siblings) == 1:
            self._begin_watch(path)
        return watch

    def watch_link(self, wake: Callable[[Link], None]) -> Watch:
        return LinkWatch(wake, self._link_watches)

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    async def _read(self, path: str) -> StoredNode | None: ...

    @abstractmethod
    async def _children(self, path: str) -> tuple[str, ...]: ...

    @abstractmethod
    async def _commit(self, ops: tuple[Op, ...], *, fence: str | None = None, parents: bool = False) -> Results: ...

    def _begin_watch(self, path: str) -> None:  # noqa: B027 - a server in this process tells of all changes
        """Ask the server to report changes of the node, which it did not report until now."""

    def _wake(self, paths: Iterable[str]) -> None:
        for path in paths:
            for watch in self._watches.get(path, ()):
                watch.wake_soon()

    def _move(self, link: Link) -> None:
        if self._link is not link:
            self._link = link
            tell_link(self._link_watches, link)


class MergingWatch:
    """A watch whose wakes merge: all that come before the first is delivered are one."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._due: asyncio.Handle | None = None

    def wake_soon(self) -> None:
        if self._due is None:
            self._due = asyncio.get_running_loop().call_soon(self._fire)

    def _fire(self) -> None:
        self._due = None
        self._wake()

    def close(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None


class TreeWatch(MergingWatch):
    """A lasting watch of one node and of the list of its children."""

    def __init__(self, wake: Callable[[], None], siblings: set[TreeWatch]) -> None:
        super().__init__(wake)
        self._siblings = siblings
        siblings.add(self)

    def close(self) -> None:
        self._siblings.discard(self)
        super().close()


class LinkWatch:
    def __init__(self, wake: Callable[[Link], None], siblings: list[LinkWatch]) -> None:
        self.wake = wake
        self._siblings = siblings
        siblings.append(self)

    def close(self) -> None:
        if self in self._siblings:
            self._siblings.remove(self)


def tell_link(watches: list[LinkWatch], link: Link) -> None:
    for watch in list(watches):
        if watch in watches:  # not closed by an earlier callback
            watch.wake(link)
