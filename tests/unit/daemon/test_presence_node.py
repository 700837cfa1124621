"""The nodes that say that a daemon lives."""

from __future__ import annotations

import asyncio
import time

from edl.clock import SystemClock
from edl.coordination.memory_store import MemoryServer
from edl.coordination.store import Store
from edl.daemon.leader_session import PresenceNode

MARKS = {"/edl/digits/workers/w1": b"host1", "/edl/digits/hosts/h/w1": b"processes"}


async def test_a_daemon_that_has_just_connected_may_be_the_first_after_an_outage() -> None:
    """So a leader in it gives all others the time to come back."""
    before = time.monotonic()
    entry = PresenceNode(MemoryServer().connect(), SystemClock(), MARKS)
    assert before <= entry.restored_at <= time.monotonic()


async def test_nodes_of_an_earlier_session_give_way() -> None:
    server = MemoryServer()
    for _ in range(2):
        store = server.connect()
        await PresenceNode(store, SystemClock(), MARKS).begin()
        for path, value in MARKS.items():
            node = await store.read(path)
            assert node is not None and (node.value, node.owner) == (value, store.session)


async def test_the_nodes_come_back_with_the_next_session() -> None:
    server = MemoryServer()
    store, other = server.connect(), server.connect()
    entry = PresenceNode(store, SystemClock(), MARKS)
    await entry.begin()
    first, before = store.session, entry.restored_at
    server.expire(store.session)
    async with asyncio.timeout(5.0):
        while await _owners(other) & {first, other.session}:  # noqa: ASYNC110 - it is in the store
            await asyncio.sleep(0.01)
    assert entry.restored_at > before
    entry.close()


async def _owners(store: Store) -> set[int]:
    nodes = [await store.read(path) for path in MARKS]
    return {store.session if node is None else node.owner for node in nodes}
