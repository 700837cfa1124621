"""The story of a job as its nodes tell it: several events in one node, and each told once."""

from __future__ import annotations

import pytest

from edl import events
from edl.coordination.coordinator_settings import Coordinator
from edl.coordination.memory_store import MemoryServer
from edl.coordination.store import Store
from edl.events import Event, Kind
from edl.outside.job_client import JobClient
from edl.protocol import node_paths

JOB = "j"


def event(number: int) -> Event:
    return Event(float(number), JOB, Kind.SCALED, 1, 1, number, {"words": "a\nline\r\x85\u2028"})


async def written(*sizes: int) -> MemoryServer:
    """Nodes of so many events each."""
    server, number = MemoryServer(), 0
    store = server.connect()
    await store.create(node_paths.events(JOB))
    for size in sizes:
        happened = [event(number + one) for one in range(size)]
        await store.create(node_paths.told(JOB, size), events.encode(*happened), sequence=True)
        number += size
    return server


@pytest.mark.parametrize("after", range(9))
async def test_those_that_are_known_are_not_told_again(after: int) -> None:
    server = await written(1, 3, 1, 2)
    store = server.connect()
    read: list[str] = []

    async def connect(_: Coordinator, session_s: float) -> Store:
        return store

    real = store.read

    async def reads(path: str) -> object:
        read.append(path)
        return await real(path)

    store.read = reads  # type: ignore[assignment, method-assign]
    async with JobClient(Coordinator("nowhere:1"), JOB, connect=connect) as client:
        count, found = await client.events(after)
    assert (count, [one.step for one in found]) == (7, list(range(after, 7)))
    assert len(read) == len([end for end in (1, 4, 5, 7) if end > after]), "only what tells something new is read"
    assert all(one == event(one.step) for one in found)


def test_a_node_of_one_event_is_what_it_always_was() -> None:
    assert node_paths.told(JOB, 1) == "/edl/j/events/e-"
    assert node_paths.events_in("e-0000000007") == 1
    assert events.decode(b'{"ts":1.0,"job":"j","kind":"scaled","term":1,"generation":2,"step":3}') == [
        Event(1.0, JOB, Kind.SCALED, 1, 2, 3)
    ]


def test_the_number_counts_and_not_how_many_a_node_holds() -> None:
    names = ["e12-0000000001", "e-0000000000", "e-0000000003", "e2-0000000002"]
    assert node_paths.in_order(names) == ["e-0000000000", "e12-0000000001", "e2-0000000002", "e-0000000003"]
