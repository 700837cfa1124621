"""Following a job from its launcher: status and events of its leader go into the record, which outlives the job."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from edl import facts
from edl.clock import SystemClock
from edl.coordination.store import Watch
from edl.errors import EdlError
from edl.events import Event, Kind
from edl.host.network import is_this_host
from edl.launch.job_records import OVER, Folder
from edl.launch.progress_log import FigureLog
from edl.launch.supervisor_inputs import JobSeen
from edl.protocol.record import Status, WorkerState

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
    )
