"""Following a job from its launcher: its leader's status, events and progress go into files, which outlive the job.

Owns: following, and the file of a job's progress over time, with the figures that its script reports. It stays small
however long the job lives: the gap between two lines grows to a thousandth of the job's age, so a day is 5,500 lines.
Does not own: what is shown of it (`edl.dashboard`).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol

import msgspec

from edl import facts
from edl.clock import SystemClock
from edl.coordination.store import Watch
from edl.errors import EdlError
from edl.events import Event, Kind
from edl.host.network import is_this_host
from edl.launch.job_records import OVER, Folder
from edl.launch.supervisor import JobSeen
from edl.protocol.record import Status, WorkerState

LEAST_S: Final = 1.0
OF_AGE: Final = 1000
MOST_FIGURES: Final = 32


class Point(msgspec.Struct, frozen=True, array_like=True):
    ts: float
    step: int  # of all lives
    samples: int
    size: int
    figures: dict[str, float] = {}  # what the script reports, the mean of all workers
    base: int = 0  # the step after which this life of the job began
    host: str = ""  # of the worker of rank 0
    generation: int = 1


def point_of(status: Status, ts: float) -> Point | None:
    """Return None if the leader does not know the job's progress."""
    if status.stable is None or not status.generation:
        return None
    first = next((worker.host for worker in status.workers if worker.rank == 0), "")
    step, samples = status.base + status.stable.step, status.stable.samples
    return Point(ts, step, samples, status.size, figures_of(status), status.base, first, status.generation)


def figures_of(status: Status) -> dict[str, float]:
    """Return each reported figure, averaged over the workers that report it."""
    values: dict[str, list[float]] = {}
    for worker in status.workers:
        for name, value in (worker.usage.reported if worker.usage else {}).items():
            values.setdefault(name, []).append(value)
    return {name: sum(found) / len(found) for name, found in sorted(values.items())[:MOST_FIGURES]}


def is_due(first: float, last: float, ts: float) -> bool:
    return ts - last >= max(LEAST_S, (ts - first) / OF_AGE)


class FigureLog:
    """Append to the figures of a job as its launcher sees them."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._first = self._last = 0.0

    def take(self, status: Status, ts: float) -> None:
        point = point_of(status, ts)
        if point is None or (self._first and not is_due(self._first, self._last, ts)):
            return
        self._first, self._last = self._first or ts, ts
        self._folder.append_figures(msgspec.json.encode(point) + b"\n")


def read_figures(folder: Folder) -> Iterator[Point]:
    """Yield all points; a line that is being written, or was broken off, is left out."""
    if not folder.figures.exists():
        return
    for line in folder.figures.read_bytes().split(b"\n"):
        try:
            yield msgspec.json.decode(line, type=Point)
        except msgspec.MsgspecError:
            continue


INTERVAL_S = 1.0  # between two looks at a job of which nothing is told
SHORTEST_S = 0.1  # between two looks
GOING = frozenset({WorkerState.LEAVING, WorkerState.DONE})
ENDS = frozenset({Kind.JOB_FINISHED, Kind.JOB_FAILED, Kind.JOB_PREEMPTED})


class WatchedJob(Protocol):
    async def status(self) -> Status:
        """Raises EdlError when no leader answers in time."""

    async def events(self, after: int) -> tuple[int, list[Event]]:
        """Return the events after the first `after`, and the number for the next call. Raises EdlError."""

    def watch_events(self, told: Callable[[], None]) -> Watch:
        """Call `told` whenever there may be more events."""


class JobWatch:
    """Look at a job periodically, and when it tells an event, and keep its last state."""

    def __init__(
        self,
        job: WatchedJob,
        folder: Folder,
        seen: Callable[[JobSeen], None],
        tell: Callable[[str], object],
    ) -> None:
        """`tell` shows users at once what may be wrong, though the job goes on."""
        self._tell = tell
        self._has_told = False
        self._job = job
        self._folder = folder
        self._seen = seen
        self._figures, self._clock = FigureLog(folder), SystemClock()
        self._status: Status | None = None
        self._after = 0
        self._looking = asyncio.Lock()  # else two looks at a time would keep the same events twice
        self.newest_step = 0  # that any worker was known to have made, also one that was lost with it
        self.cause = ""  # how the first worker ended that was lost of the newest ring that has lost one
        self._cause_of = -1  # the generation of that ring

    @property
    def heard(self) -> bool:
        """Tell whether any worker has ever joined."""
        return self._status is not None

    @property
    def status(self) -> Status | None:
        return self._status

    @property
    def over(self) -> bool:
        return self._status is not None and self._status.state.value in OVER

    async def run(self) -> None:
        told = asyncio.Event()
        watch = self._job.watch_events(told.set)
        try:
            while True:
                told.clear()
                await self.look()
                await asyncio.sleep(SHORTEST_S)
                if self._status is not None and self._status.generation > 0:  # its first output is to have the ranks
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(INTERVAL_S - SHORTEST_S):
                            await told.wait()
        finally:
            watch.close()

    async def look(self) -> None:
        """Look once. If the job does not answer, the next look tries again: the launcher can do nothing else."""
        async with self._looking:
            await self._look()

    async def _look(self) -> None:
        try:
            status = await self._job.status()
            after, events = await self._job.events(self._after)
        except EdlError:
            return
        self._after = after
        if events:
            self._folder.append_events([event.to_json() for event in events])
            self._learn(events)
        if status != self._status:
            self._status = status
            self._folder.write_status(msgspec.json.encode(status))
        self._figures.take(status, self._clock.wall())
        self.newest_step = max(self.newest_step, status.step)
        self._seen(job_seen(status))

    def _learn(self, events: Iterable[Event]) -> None:
        for event in events:
            if event.kind in ENDS:  # a short job is seen once it is over, where its status has no step
                self.newest_step = max(self.newest_step, event.step)
            if event.kind is Kind.DIVERGED:
                self._tell_first(facts.WorkersDiverged.of(event.details))
            if event.kind is not Kind.WORKER_LOST:
                continue
            lost = facts.WorkerLost.of(event.details)
            self.newest_step = max(self.newest_step, lost.made)
            if event.generation != self._cause_of:
                self._cause_of, self.cause = event.generation, lost.reason

    def _tell_first(self, differ: facts.WorkersDiverged) -> None:
        # The first difference says most: others may follow from it. The reason of a failure is told at the job's end.
        if not self._has_told and differ.action != "fail":
            self._has_told = True
            self._tell(differ.words())


def job_seen(status: Status) -> JobSeen:
    here = [worker for worker in status.workers if worker.host == socket.gethostname()]
    migration = status.migration
    outside = migration.newcomers if migration is not None else ()
    staying = [worker for worker in status.workers if worker.state not in GOING and worker.id not in outside]
    awaited = [room.slots for room in migration.awaited if is_this_host(room.host)] if migration is not None else []
    return JobSeen(
        state=status.state.value,
        reason=status.reason,
        ranks={worker.pid: worker.rank for worker in here if worker.rank is not None},
        size=status.size,
        target=status.target,
        asked_more=status.tally.asked_more,
        members=len(staying),
        pids=frozenset(worker.pid for worker in here),
        done=frozenset(worker.pid for worker in here if worker.state is WorkerState.DONE),
        spent=status.spent,
        minimum=status.min_workers,
        migration=migration.number if migration is not None else 0,
        awaited=sum(awaited),
        short="" if status.state.value in OVER else status.reason,
        failed_by=status.failed_by,
        resumed=status.resumed,
        base=status.base,
        ring=status.ring,
        unsaved=status.saving.failed.reason if status.saving is not None and status.saving.failed is not None else "",
    )
