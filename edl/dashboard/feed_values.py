"""Conversion of a feed's data to the values that a page shows."""

from __future__ import annotations

from typing import Any

from edl.dashboard.page_feed import Feed
from edl.dashboard.page_html import Charts
from edl.dashboard.page_view import ROWS, Sight, ToldEvent, change_of, event_of, sizes_of, view_of
from edl.dashboard.series import series_of


def view(feed: Feed) -> Sight:
    status = feed.status
    assert status is not None
    spendings = {worker.id: feed.spendings.of(worker.id) for worker in status.workers}
    return view_of(status, spendings, feed.seen_at)


def newest(feed: Feed, most: int = ROWS) -> list[ToldEvent]:
    """Return the newest events, newest first."""
    return [event_of(number, flat) for number, flat in reversed(feed.after(max(0, feed.count - most)))]


def earlier(feed: Feed) -> int:
    """Return the number of events before those that a page shows."""
    return max(0, feed.count - ROWS)


def charts(feed: Feed) -> Charts:
    end = feed.story[-1]["ts"] if feed.story and feed.status is not None and view(feed).over else feed.seen_at
    at, sizes = sizes_of(feed.story, feed.status, end)
    changes = [change for flat in feed.story if (change := change_of(flat)) is not None][-len(at) :]
    marks: list[Any] = [[round(one.ts, 3), one.size, one.pause_ms, one.words] for one in changes]
    size = {"at": [round(ts, 3) for ts in at], "size": sizes, "changes": marks}
    return Charts(size, series_of(feed.history.points))
