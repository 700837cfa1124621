"""Watches of a link, without a store."""

from __future__ import annotations

from edl.coordination.store import Link
from edl.coordination.tree_store import LinkWatch, tell_link


def test_a_watch_that_an_earlier_callback_has_closed_is_not_woken() -> None:
    watches: list[LinkWatch] = []
    woken: list[Link] = []
    LinkWatch(lambda _: later.close(), watches)
    later = LinkWatch(woken.append, watches)
    LinkWatch(woken.append, watches)
    tell_link(watches, Link.LOST)
    assert woken == [Link.LOST]
