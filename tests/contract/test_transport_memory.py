"""The faults that the twin in memory can play, one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from edl.transport.call_errors import DeadlineExceeded, Refusals, Unreachable
from edl.transport.memory_transport import Fate, MemoryClient, MemoryListener, MemoryNetwork, Parcel
from edl.transport.service import Call

SECRET = b"a secret of the job"


class Count(msgspec.Struct, frozen=True, tag="count"):
    number: int


class Hall:
    """One server that counts, and its clients."""

    def __init__(self) -> None:
        self.network = MemoryNetwork()
        self.refusals = Refusals()
        self.taken: list[int] = []
        self.server: MemoryListener = self.network.server(
            SECRET, "job", self.take, request_types=Count, refusals=self.refusals
        )

    async def take(self, call: Call) -> msgspec.Struct:
        self.taken.append(call.body.number)
        return Count(len(self.taken))

    async def start(self) -> str:
        self.server.term = 1
        return f"hall:{await self.server.start('hall')}"


@pytest.fixture
async def hall() -> Hall:
    return Hall()


async def call(client: MemoryClient, number: int = 0, deadline_s: float = 5) -> Any:
    return await client.call(Count(number), Count, term=1, deadline_s=deadline_s)


def to(fate: Fate, *, reply: bool) -> Callable[[Parcel], Fate]:
    return lambda parcel: fate if parcel.reply is reply else Fate.DELIVER


async def test_a_lost_request_is_never_taken(hall: Hall) -> None:
    client = hall.network.client(SECRET, "job", "w1", await hall.start())
    hall.network.fate = to(Fate.DROP, reply=False)
    with pytest.raises(DeadlineExceeded):
        await call(client, deadline_s=0.01)
    assert hall.taken == []


async def test_a_lost_reply_leaves_the_deed_done(hall: Hall) -> None:
    client = hall.network.client(SECRET, "job", "w1", await hall.start())
    hall.network.fate = to(Fate.DROP, reply=True)
    with pytest.raises(DeadlineExceeded):
        await call(client, deadline_s=0.01)
    assert hall.taken == [0]


async def test_a_doubled_request_is_taken_once_and_counted(hall: Hall) -> None:
    client = hall.network.client(SECRET, "job", "w1", await hall.start())
    hall.network.fate = to(Fate.DOUBLE, reply=False)
    assert await call(client) == Count(1)
    assert hall.taken == [0]
    assert hall.refusals.snapshot() == {"replayed": 1}


async def test_held_messages_go_on_in_the_order_of_release(hall: Hall) -> None:
    client = hall.network.client(SECRET, "job", "w1", await hall.start())
    hall.network.fate = to(Fate.HOLD, reply=False)
    calls = [asyncio.create_task(call(client, number)) for number in (1, 2, 3)]
    await hall.network.wait_held(3)
    hall.network.held.rotate(1)  # 3, 1, 2: messages of one sender may overtake each other
    hall.network.release(1)
    assert await calls[2] == Count(1)
    hall.network.release()
    await asyncio.gather(*calls)
    assert hall.taken == [3, 1, 2]


async def test_a_partition_separates_until_it_heals(hall: Hall) -> None:
    address = await hall.start()
    inside, outside = (hall.network.client(SECRET, "job", sender, address) for sender in ("in", "out"))
    hall.network.cut("out")
    assert await call(inside) == Count(1)
    with pytest.raises(DeadlineExceeded):
        await call(outside, deadline_s=0.01)
    hall.network.heal()
    assert await call(outside) == Count(2)


async def test_a_killed_server_ends_its_calls_and_a_new_one_has_another_address(hall: Hall) -> None:
    address = await hall.start()
    client = hall.network.client(SECRET, "job", "w1", address)
    hall.network.fate = to(Fate.HOLD, reply=False)
    pending = asyncio.create_task(call(client))
    await hall.network.wait_held(1)
    hall.server.kill()
    hall.network.release()
    with pytest.raises(Unreachable):
        await pending
    assert await hall.start() != address


async def test_without_faults_all_happens_in_the_same_order_each_time() -> None:
    async def story() -> list[int]:
        hall = Hall()
        address = await hall.start()
        clients = [hall.network.client(SECRET, "job", f"w{number}", address) for number in range(10)]
        await asyncio.gather(*(call(client, number) for number, client in enumerate(clients)))
        return hall.taken

    assert await story() == await story()
