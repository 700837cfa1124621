"""What becomes of watches that etcd refuses, ends, or has forgotten the beginning of."""

from __future__ import annotations

import asyncio

import pytest

from edl.coordination.etcd.etcd_layout import KeyLayout
from edl.coordination.etcd.etcd_messages import WatchCancelRequest, WatchEvent, WatchRequest, WatchResponse
from edl.coordination.etcd.etcd_watches import Watches
from edl.errors import StoreUnavailable


def nothing() -> None:
    pass


class Attached:
    """Watches with a connection, and one watch of "/a"."""

    def __init__(self) -> None:
        self.wakes = 0
        self.watches = Watches(KeyLayout("/edl"), lambda: 7, nothing)
        self.watches.attach(1)
        self.watch = self.watches.add("/a", self._woken)
        self.asked()

    def _woken(self) -> None:
        self.wakes += 1

    def asked(self) -> list[WatchRequest]:
        requests = self.watches._requests
        assert requests is not None
        return [requests.get_nowait() for _ in range(requests.qsize())]

    async def hear(self, **answer: object) -> None:
        self.watches._heard(WatchResponse(**answer))  # type: ignore[arg-type]
        await asyncio.sleep(0)


async def test_a_refused_watch_breaks_the_connection() -> None:
    """etcd says -1 and not which one: were it passed over, its owner would never wake."""
    one = Attached()
    with pytest.raises(StoreUnavailable, match="refuses a watch: duplicate watch ID"):
        await one.hear(watch_id=-1, created=True, canceled=True, cancel_reason="duplicate watch ID")


@pytest.mark.parametrize("slot", [1, 2, 3])
async def test_a_watch_that_was_compacted_away_is_cancelled_before_it_begins_again(slot: int) -> None:
    one = Attached()
    number = one.watch.number * 4 + slot
    await one.hear(watch_id=number, canceled=True, compact_revision=9)
    assert one.wakes == 1
    cancel, create = one.asked()
    assert cancel == WatchRequest(cancel_request=WatchCancelRequest(number))
    assert create.create_request is not None
    assert (create.create_request.watch_id, create.create_request.start_revision) == (number, 9)
    await one.hear(watch_id=number, canceled=True)  # the answer to our cancel
    await one.hear(watch_id=number, created=True)
    assert one.wakes == 1
    await one.hear(watch_id=number, events=(WatchEvent(),))
    assert one.wakes == 2


@pytest.mark.parametrize("how", [{"created": True}, {"cancel_reason": "permission denied"}])
async def test_a_watch_that_etcd_ends_otherwise_breaks_the_connection(how: dict[str, object]) -> None:
    one = Attached()
    with pytest.raises(StoreUnavailable, match="ends a watch of /a"):
        await one.hear(watch_id=one.watch.number * 4 + 1, canceled=True, **how)


async def test_the_end_of_a_watch_that_was_closed_is_nothing() -> None:
    one = Attached()
    one.watch.close()
    await one.hear(watch_id=one.watch.number * 4 + 1, canceled=True)
    assert one.wakes == 0
