"""How long decisions take, as a scheduler's log tells it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any, cast

import pytest

from edl.cluster.policies.registry import build
from edl.cluster.queue.measured_speeds import UnknownSpeeds
from edl.cluster.queue.scheduler_inputs import ClusterRules
from edl.cluster.queue.scheduler_machine import SchedulerMachine
from edl.coordination.election import Reign
from edl.coordination.memory_store import MemoryServer
from edl.coordination.store import Create, Store
from edl.scheduler.job_poller import JobsObserver
from edl.scheduler.queue_store import QueueStore
from edl.scheduler.scheduler_loop import KEPT, TOLD_EVERY_S, DecisionTimes, SchedulerLoop, ToldTimes, told_in


def test_a_line_is_due_once_a_minute_and_only_if_something_was_decided() -> None:
    times = DecisionTimes(100.0)
    times.note(0.010)
    assert times.due(100.0 + TOLD_EVERY_S - 1) == ""
    assert times.due(100.0 + TOLD_EVERY_S).startswith("1 decisions, the newest 1 within 10.0 ms (median)")
    assert times.due(100.0 + 3 * TOLD_EVERY_S) == times.last() == ""
    times.note(0.020)
    assert times.due(100.0 + 3 * TOLD_EVERY_S + 1) == ""  # a minute since it was looked for
    assert times.last().startswith("2 decisions")


def test_times_are_of_the_newest_decisions_and_read_back_as_they_were_told() -> None:
    times = DecisionTimes(0.0)
    for _ in range(5):
        times.note(60.0)
    for number in range(KEPT):
        times.note(number / 1e6)
    line = times.last()
    before = "term 3: 7 decisions, the newest 7 within 1.0 ms (median), 2.0 ms (p95)"
    log = f"2026-01-01 INFO {before}\nother words\n2026-01-01 INFO term 4: {line}\n"
    assert told_in(log) == [ToldTimes(3, 7, 7, 1.0, 2.0), ToldTimes(4, KEPT + 5, KEPT, 5.0, 9.5)]
    newer = log + "INFO term 4: 90000 decisions, the newest 10000 within 3.0 ms (median), 4.5 ms (p95)\n"
    assert told_in(newer)[1:] == [ToldTimes(4, 90000, 10000, 3.0, 4.5)]


class HeardQueue(QueueStore):
    """Says when a decision is durable."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.kept, self.durable = 0, asyncio.Event()

    async def keep(self, *what: Any) -> None:
        await super().keep(*what)
        self.kept += 1
        self.durable.set()


async def test_a_reign_says_at_its_end_how_long_its_decisions_took(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryServer().connect()
    queue = HeardQueue(store)
    await store.commit([Create("/fence", b"")])
    rules = ClusterRules()
    reign = SchedulerLoop(
        queue,
        Reign(3, "/fence"),
        cast("JobsObserver", None),
        lambda jobs: SchedulerMachine(build("fifo"), UnknownSpeeds(), rules, jobs),
    )
    with caplog.at_level(logging.INFO, "edl"):
        ruling = asyncio.create_task(reign.run())
        async with asyncio.timeout(10):
            await queue.durable.wait()
        ruling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ruling
    [told] = told_in(caplog.text)
    assert (told.term, told.made) == (3, queue.kept)
    assert 0 < told.median_ms <= told.p95_ms < 10_000
