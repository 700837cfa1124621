"""When a page goes on asking for its job, and when it rests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace

import pytest
from seen_job import event, status

from edl.clock import ManualClock
from edl.dashboard import page_feed as module
from edl.dashboard.page_feed import Feed
from edl.errors import ConfigError
from edl.protocol.record import Status

Told = list[object]


class TellingJob:
    """Of a job that tells what is in `told`: events, and what it raises."""

    def __init__(self, told: Told) -> None:
        self.told = told

    async def __aenter__(self) -> TellingJob:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def status(self) -> Status:
        if self.told and isinstance(self.told[0], Exception):
            raise self.told[0]
        return status()

    async def follow(self, after: int) -> AsyncIterator[SimpleNamespace]:
        for one in self.told[after:]:
            if isinstance(one, Exception):
                raise one
            await asyncio.sleep(0)
            yield SimpleNamespace(flat=lambda one=one: one)


def place(*told: object, alive: bool | None, asked: bool = True) -> SimpleNamespace:
    """`alive`: its launcher on this machine; None: it was started elsewhere."""
    record = None if alive is None else SimpleNamespace(alive=alive, events_before=0)
    coordinator = "zk:2181" if asked else None
    return SimpleNamespace(folder=None, record=record, coordinator=coordinator, client=lambda: TellingJob(list(told)))


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AGAIN_S", 0.0)


async def run(places: Iterator[SimpleNamespace | Exception]) -> Feed:
    """Until it rests."""

    def locate() -> SimpleNamespace:
        found = next(places)
        if isinstance(found, Exception):
            raise found
        return found

    feed = Feed(locate, ManualClock())  # type: ignore[arg-type]
    await asyncio.wait_for(feed.run(), 5)
    return feed


AWAY = ConfigError("no worker answers")


@pytest.mark.parametrize(
    "places",
    [
        [place(event(1), alive=None)],
        [place(event(1), alive=False)],
        [place(event(1), alive=True), place(event(1), alive=False)],
        [place(event(1), alive=True), place(AWAY, alive=False)],
        [place(event(1), alive=True), place(alive=False, asked=False)],
        [ConfigError("no job j was started on this machine"), place(AWAY, alive=None), place(event(1), alive=None)],
        [OSError("its record is being replaced"), place(event(1), alive=True), place(alive=False, asked=False)],
    ],
)
async def test_it_rests_once_the_job_is_over_and_not_before(places: list[SimpleNamespace | Exception]) -> None:
    left = iter(places)
    feed = await run(left)
    assert [one["kind"] for one in feed.story] == ["epoch_ended"]
    assert next(left, None) is None


async def test_it_goes_on_where_a_job_is_away_that_outlives_its_launcher_here() -> None:
    feed = await run(iter([place(event(1), AWAY, alive=False), place(event(1), event(2), alive=False)]))
    assert feed.count == 2
