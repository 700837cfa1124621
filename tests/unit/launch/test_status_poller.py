"""What a launcher keeps of a job that it looks at now and then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from edl import facts
from edl.coordination.store import Watch
from edl.events import Event, Kind
from edl.launch import status_poller as module
from edl.launch.job_records import Folder
from edl.launch.status_poller import JobWatch
from edl.protocol.record import JobState, Status


class LookedAt:
    """A job that is over by the time of the first look. Its leader is gone, and with it the newest step."""

    def __init__(self, *events: Event) -> None:
        self._events = list(events)

    async def status(self) -> Status:
        return OVER

    async def events(self, after: int) -> tuple[int, list[Event]]:
        return len(self._events), self._events[after:]

    def watch_events(self, told: Callable[[], None]) -> Watch:
        raise NotImplementedError


OVER = Status(
    job="x", state=JobState.FINISHED, reason="", term=1, generation=1, leader="", step=0, epoch=0, size=0, target=1,
    min_workers=1, max_workers=0, workers=(), data=None, spec=None,
)  # fmt: skip


@pytest.mark.parametrize("kind", [Kind.JOB_FINISHED, Kind.JOB_FAILED, Kind.JOB_PREEMPTED])
async def test_the_step_of_a_job_that_was_too_short_to_be_seen_training_is_told_by_its_end(tmp_path: Path, kind: Kind):
    ahead = Event(1.0, "x", Kind.CHECKPOINT_BEGUN, 1, 1, 40)  # it tells of a step to come
    watch = JobWatch(LookedAt(ahead, Event(2.0, "x", kind, 1, 1, 10)), Folder(tmp_path), lambda seen: None, print)
    await watch.look()
    assert watch.newest_step == 10


async def test_people_are_told_at_once_that_workers_came_to_differ_and_only_of_the_first_time(tmp_path: Path):
    def differ(step: int, action: str = "part") -> Event:
        said = facts.WorkersDiverged(
            workers=("w2",), first="rate", differing=1, compared=2, after_step=step, equal_step=0, like="w0",
            majority=True, action=action, likely="a count", told=f"the workers' states differ after step {step}",
        )  # fmt: skip
        return Event(1.0, "x", Kind.DIVERGED, 1, 1, step, said.details())

    lines: list[str] = []
    watch = JobWatch(
        LookedAt(differ(3, "fail"), differ(5), differ(9)), Folder(tmp_path), lambda seen: None, lines.append
    )
    await watch.look()
    assert lines == ["the workers' states differ after step 5. What follows: w2 must leave, and the job trains on"]


async def test_a_job_is_looked_at_as_soon_as_it_tells_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    looks, closed = asyncio.Queue[int](), list[bool]()

    class Telling(LookedAt):
        tell: Callable[[], None]

        async def events(self, after: int) -> tuple[int, list[Event]]:
            looks.put_nowait(1)
            return await super().events(after)

        def watch_events(self, told: Callable[[], None]) -> Watch:
            self.tell = told
            return Closing()

    class Closing:
        def close(self) -> None:
            closed.append(True)

    monkeypatch.setattr(module, "INTERVAL_S", 1000.0)
    monkeypatch.setattr(module, "SHORTEST_S", 0.0)
    job = Telling()
    following = asyncio.create_task(JobWatch(job, Folder(tmp_path), lambda seen: None, print).run())
    await looks.get()
    for _ in range(3):
        job.tell()
        await looks.get()
    for _ in range(20):
        await asyncio.sleep(0)
    assert looks.empty(), "a look for each word, and no more"
    job.tell()  # a word at the moment of its end does not keep it alive, as it would asyncio.wait_for()
    following.cancel()
    ended, _ = await asyncio.wait({following}, timeout=5)
    assert ended
    assert closed
