"""What becomes of watches that etcd refuses, ends, or has forgotten the beginning of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from edl.coordination.etcd.etcd_messages import WatchCancelRequest, WatchEvent, WatchRequest, WatchResponse
from edl.coordination.etcd.etcd_session import Watches
from edl.coordination.etcd.etcd_transactions import KeyLayout
from edl.errors import StoreUnavailable


def nothing() -> None:
    pass


class Stream:
    """A server's side of the watches' stream."""

    def __init__(self) -> None:
        self.asked: list[WatchRequest] = []
        self.answers: asyncio.Queue[WatchResponse] = asyncio.Queue()
        self.heard = asyncio.Event()

    async def write(self, request: WatchRequest) -> None:
        self.asked.append(request)

    async def read(self) -> WatchResponse:
        if self.answers.empty():
            self.heard.set()
        return await self.answers.get()


class Attached:
    """Watches with a connection, and one watch of "/a"."""

    def __init__(self) -> None:
        self.wakes = 0
        self.watches = Watches(KeyLayout("/edl"), lambda: 7, nothing)
        self.watches.attach(1)
        self.watch = self.watches.add("/a", self._woken)
        self.stream = Stream()
        self.serving = asyncio.create_task(self.watches.serve(self.stream))

    def _woken(self) -> None:
        self.wakes += 1

    async def hear(self, **answer: object) -> list[WatchRequest]:
        """Let the server answer; return what it is asked thereupon. Raises what ends the watches' service."""
        before = len(self.stream.asked)
        self.stream.heard.clear()
        self.stream.answers.put_nowait(WatchResponse(**answer))  # type: ignore[arg-type]
        heard = asyncio.create_task(self.stream.heard.wait())
        await asyncio.wait({heard, self.serving}, return_when=asyncio.FIRST_COMPLETED)
        if self.serving.done():
            self.serving.result()
        await asyncio.sleep(0)  # a wake and a request follow
        return self.stream.asked[before:]


@pytest.fixture
async def one() -> AsyncIterator[Attached]:
    attached = Attached()
    await asyncio.sleep(0)
    yield attached
    attached.serving.cancel()
    await asyncio.wait({attached.serving})


def ends(words: str) -> pytest.RaisesGroup[StoreUnavailable]:
    return pytest.RaisesGroup(pytest.RaisesExc(StoreUnavailable, match=words))


async def test_a_refused_watch_breaks_the_connection(one: Attached) -> None:
    """etcd says -1 and not which one: were it passed over, its owner would never wake."""
    with ends("refuses a watch: duplicate watch ID"):
        await one.hear(watch_id=-1, created=True, canceled=True, cancel_reason="duplicate watch ID")


@pytest.mark.parametrize("slot", [1, 2, 3])
async def test_a_watch_that_was_compacted_away_is_cancelled_before_it_begins_again(one: Attached, slot: int) -> None:
    number = one.watch.number * 4 + slot
    cancel, create = await one.hear(watch_id=number, canceled=True, compact_revision=9)
    assert one.wakes == 1
    assert cancel == WatchRequest(cancel_request=WatchCancelRequest(number))
    assert create.create_request is not None
    assert (create.create_request.watch_id, create.create_request.start_revision) == (number, 9)
    await one.hear(watch_id=number, canceled=True)  # the answer to our cancel
    await one.hear(watch_id=number, created=True)
    assert one.wakes == 1
    await one.hear(watch_id=number, events=(WatchEvent(),))
    assert one.wakes == 2


@pytest.mark.parametrize("how", [{"created": True}, {"cancel_reason": "permission denied"}])
async def test_a_watch_that_etcd_ends_otherwise_breaks_the_connection(one: Attached, how: dict[str, object]) -> None:
    with ends("ends a watch of /a"):
        await one.hear(watch_id=one.watch.number * 4 + 1, canceled=True, **how)


async def test_the_end_of_a_watch_that_was_closed_is_nothing(one: Attached) -> None:
    one.watch.close()
    await one.hear(watch_id=one.watch.number * 4 + 1, canceled=True)
    assert one.wakes == 0
