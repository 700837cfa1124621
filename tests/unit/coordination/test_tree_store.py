"""Watches, without a store."""

from __future__ import annotations

import asyncio

from edl.coordination.store import Link
from edl.coordination.tree_store import LinkWatch, MergingWatch, tell_link


def test_a_watch_that_an_earlier_callback_has_closed_is_not_woken() -> None:
    watches: list[LinkWatch] = []
    woken: list[Link] = []
    LinkWatch(lambda _: later.close(), watches)
    later = LinkWatch(woken.append, watches)
    LinkWatch(woken.append, watches)
    tell_link(watches, Link.LOST)
    assert woken == [Link.LOST]


async def test_wakes_that_are_due_together_are_one_and_none_follows_a_close() -> None:
    woken: list[None] = []
    watch = MergingWatch(lambda: woken.append(None))
    for _ in range(2):
        watch.wake_soon()
        watch.wake_soon()
        await asyncio.sleep(0)
    assert len(woken) == 2
    watch.wake_soon()
    watch.close()
    await asyncio.sleep(0)
    assert len(woken) == 2
