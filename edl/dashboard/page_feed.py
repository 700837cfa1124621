"""The data of a job's page: its events as they happen, its status each second, and its earlier history.

Owns: following one job through its lives, leaders and outages, waking the tasks that wait for news, and converting the
data to what a page shows, a history in as many points as a page can draw. Does not own: what is shown
(`edl.dashboard.page_view`).

The feed is an ordinary client of the job, in a process of its own: however many browsers are open, the leader is asked
once a second. An event's number is its place in the job's history, which is equal after a reload and in a later report.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec

from edl.clock import Clock, SystemClock
from edl.dashboard.page_html import Charts
from edl.dashboard.page_view import ROWS, PageValues, TimeShares, ToldEvent, change_of, event_of, sizes_of, view_of
from edl.errors import EdlError
from edl.launch.job_records import Folder
from edl.launch.locate_job import Whereabouts, recorded_status
from edl.launch.status_poller import Point, point_of, read_figures
from edl.outside.job_client import JobClient
from edl.protocol.record import OVER, Status


def view(feed: Feed) -> PageValues:
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


LOOK_S: Final = 1.0
AGAIN_S: Final = 0.25  # between attempts to connect to a job
MOST_EVENTS: Final = 100_000  # events that are kept; a day with a change each minute has a tenth of them


class Feed:
    """Run it as a task."""

    def __init__(self, locate: Callable[[], Whereabouts], clock: Clock | None = None) -> None:
        """`locate` returns where the job is now, because each of its lives may have a coordinator of its own."""
        self._locate = locate
        self._clock = clock or SystemClock()
        self.story: list[dict[str, Any]] = []
        self.dropped = 0  # number of events that are no longer kept
        self.status: Status | None = None
        self.seen_at = 0.0  # time of the status
        self.history = History()
        self.spendings = TimeShares()
        self.looks = 0
        self._news = asyncio.Event()

    @property
    def count(self) -> int:
        """The number of the newest event."""
        return self.dropped + len(self.story)

    def after(self, number: int) -> list[tuple[int, dict[str, Any]]]:
        """Return the numbered events beyond `number`, as far as they are kept."""
        first = max(0, number - self.dropped)
        return list(enumerate(self.story[first:], start=self.dropped + first + 1))

    @property
    def news(self) -> asyncio.Event:
        """An event that is set after the next event of the job or the next status. Take it before reading the feed."""
        return self._news

    @staticmethod
    async def wait(news: asyncio.Event, timeout_s: float) -> None:
        """Return after `timeout_s` at the latest, also without news."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await news.wait()

    async def heard(self, within_s: float) -> bool:
        """Wait for a first status; return False if there is none in time."""
        try:
            async with asyncio.timeout(within_s):
                while self.status is None:
                    await self._news.wait()
        except TimeoutError:
            return False
        return True

    async def run(self) -> None:
        """Follow the job until cancelled, or until the job is over for good."""
        while True:
            if await self._go_on():
                self._wake()
                return
            await asyncio.sleep(AGAIN_S)

    async def _go_on(self) -> bool:
        """Follow the job's present life. Return True if the job is over for good."""
        with contextlib.suppress(EdlError, OSError):  # the job is between two lives, or its record is being replaced
            where = self._locate()
            self._read(where)
            gone = where.record is not None and not where.record.alive  # the launcher has ended, and this life with it
            if where.coordinator is None:
                return gone
            known = self.looks
            try:
                await self._follow(where)
                return gone or where.record is None
            except EdlError:
                if gone and self.looks == known:  # and no coordinator answers
                    return True
                raise
        return False

    async def read_all(self) -> None:
        """Read the record, and ask the job if it is running, once. Raises EdlError if there is nothing to read."""
        where = self._locate()
        self._read(where)
        if where.coordinator is not None and not (self.status is not None and self.status.state in OVER):
            before = 0 if where.record is None else where.record.events_before
            async with where.client() as client:
                self.take_events([event.flat() for event in (await client.events(max(0, self.count - before)))[1]])
                self.take_status(await client.status())

    def _read(self, where: Whereabouts) -> None:
        """Read the launcher's record: the events from the beginning, those of earlier lives included."""
        if where.folder is None or where.record is None:
            return
        self.take_events(_kept(where.folder, self.count))
        self.history.take(read_figures(where.folder))
        status = recorded_status(where.folder, where.record)
        if self.status is None or status.state in OVER:
            self.take_status(status)

    async def _follow(self, where: Whereabouts) -> None:
        """Follow this life of the job to its end. Raises EdlError."""
        before = 0 if where.record is None else where.record.events_before
        async with where.client() as client:
            looking = asyncio.create_task(self._look(client))
            try:
                async for event in client.follow(max(0, self.count - before)):
                    self.take_events([event.flat()])
                self.take_status(await client.status())
            finally:
                looking.cancel()
                await asyncio.gather(looking, return_exceptions=True)

    async def _look(self, client: JobClient) -> None:
        while True:
            with contextlib.suppress(EdlError):
                self.take_status(await client.status())
            await asyncio.sleep(LOOK_S)

    def take_status(self, status: Status) -> None:
        self.status, self.seen_at = status, self._clock.wall()
        self.spendings.take(status)
        if (point := point_of(status, self.seen_at)) is not None and status.state not in OVER:
            self.history.take([point])
        self.looks += 1
        self._wake()

    def take_events(self, events: list[dict[str, Any]]) -> None:
        if not events:
            return
        self.story += events
        if (excess := len(self.story) - MOST_EVENTS) > 0:
            del self.story[:excess]
            self.dropped += excess
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


def _kept(folder: Folder, after: int) -> list[dict[str, Any]]:
    """Return the events beyond the first `after`. A line that is still being written is left for the next time."""
    if not folder.events.exists():
        return []
    return [msgspec.json.decode(line) for line in folder.events.read_bytes().split(b"\n")[after:-1]]


MOST: Final = 1200  # points: twice as many as a phone has pixels across
NAMES: Final = 6  # number of the script's figures that are drawn


class Series(msgspec.Struct, frozen=True):
    """Columns of equal length; `None` where a value is not known."""

    at: tuple[float, ...]
    samples_s: tuple[float | None, ...]
    steps_s: tuple[float | None, ...]
    figures: dict[str, tuple[float | None, ...]]


class History:
    """Points of one job, oldest first, at most twice as many as are drawn."""

    def __init__(self) -> None:
        self.points: list[Point] = []

    def take(self, points: Iterable[Point]) -> None:
        """Add points that are newer than the present ones."""
        for point in points:
            if not self.points or point.ts > self.points[-1].ts:
                self.points.append(point)
        if len(self.points) > 2 * MOST:
            self.points = thinned(self.points, MOST)


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """Keep every n-th point, and the newest: the rate between two kept points is the mean rate over all points between
    them.
    """
    stride = max(1, -(-len(points) // most))
    kept = list(points[::stride])
    return kept if not points or kept[-1] is points[-1] else [*kept, points[-1]]


def series_of(points: Sequence[Point]) -> Series:
    """Compute the rate between each point and the one before; None if a life of the job began in between."""
    points = thinned(points, MOST)
    at, samples_s, steps_s = [], [], []
    for before, after in pairwise(points):
        span = after.ts - before.ts
        forward = after.step >= before.step and after.samples >= before.samples
        at.append(round(after.ts, 2))
        samples_s.append(_rounded((after.samples - before.samples) / span) if forward else None)
        steps_s.append(_rounded((after.step - before.step) / span) if forward else None)
    names = sorted({name for point in points[1:] for name in point.figures})[:NAMES]
    figures = {name: tuple(_figure(point, name) for point in points[1:]) for name in names}
    return Series(tuple(at), tuple(samples_s), tuple(steps_s), figures)


def _figure(point: Point, name: str) -> float | None:
    value = point.figures.get(name)
    return None if value is None else _rounded(value)


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")
