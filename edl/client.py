"""A running job for schedulers and scripts: see it, make it grow and shrink, wait for it, end it. docs/scaling.md.

    from edl.client import Ack, Job, Retry

    with Job("mnist") as job:
        match job.scale_out(2):
            case Ack(target):
                job.wait(target, timeout=600)
            case Retry(reason):
                ...  # nothing has changed: ask the same again later

Synchronous, for one thread at a time. Owns: the calls and their checks. Does not own: asking a leader, and that each
request counts once (`edl.outside.client`); which sizes a job may have (its leader decides).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from types import TracebackType
from typing import Any

import msgspec

from edl.config import Given, Settings
from edl.errors import EdlError, NoSuchJob, UsageError
from edl.events import Event, from_flat
from edl.launch import stopping
from edl.launch.hosts import parse_rooms
from edl.launch.story import story
from edl.launch.whereabouts import Whereabouts, kept_status, locate, recorded_status
from edl.outside.client import Ack, JobClient, Retry
from edl.outside.loop_thread import loop_thread
from edl.outside.moving import moved
from edl.outside.profiling import BATCHES, TIMEOUT_S, Profile, Wish, profile
from edl.outside.saving import PREEMPT_S, PREEMPTED, preempted, saved
from edl.protocol.job import JobState, Status, WorkerState, WorkerStatus
from edl.protocol.job_policy import MOST
from edl.protocol.moving import Room

__all__ = ["Ack", "Event", "Job", "JobState", "Profile", "Retry", "Status", "WorkerState", "WorkerStatus"]

STOP_REASON = "stopped by edl.client"


class Job:
    """One job. A context; without `with`, call `close()` in the end. Every call may raise an EdlError."""

    def __init__(self, name: str | None = None, *, coordinator: str | None = None, secret: bytes | None = None) -> None:
        """`name` defaults to EDL_JOB, else to the only job that runs on this machine.

        A job that was started on this machine needs nothing else. For another give its `coordinator` (default:
        EDL_COORDINATOR) and, if it was started with one, its `secret` (default: what is in EDL_SECRET_FILE).
        Raises ConfigError, UsageError.
        """
        keywords = {"job": ("name", name), "coordinator": ("coordinator", coordinator)}
        given = {
            field: Given(value, f"{keyword}={value!r}")
            for field, (keyword, value) in keywords.items()
            if value is not None
        }
        self._settings = Settings.from_given(given, os.environ)
        self._secret = secret or b""
        self._where = self._locate()
        self._settings = msgspec.structs.replace(self._settings, job=self._where.job)
        self._client: JobClient | None = None

    @property
    def name(self) -> str:
        return self._where.job

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connection. The next call opens another."""
        if self._client is not None:
            loop_thread().run(self._closed())

    # -------------------------------------------------------------------------------------------------------- looking

    def status(self) -> Status:
        """The job as it is; one that is over, as it was seen last. What `edl status --json` shows."""
        return loop_thread().run(self._status())

    def events(self) -> list[Event]:
        """What has happened so far, oldest first."""
        return loop_thread().run(self._events())

    def follow(self) -> Iterator[Event]:
        """What has happened so far, and what happens, as it does; ends with the job."""
        told = story(self._where, follow=True)

        async def following() -> dict[str, Any] | None:
            return await anext(told, None)

        while (flat := loop_thread().run(following())) is not None:
            yield from_flat(flat)

    def wait(self, size: int | None = None, timeout: float | None = None) -> Status:
        """Until `size` workers train; without it, as many as are asked for. `timeout` in seconds; None: no limit.

        Raises TimedOut (a TimeoutError), and JobFailed when the job is over first.
        """
        return loop_thread().run(self._wait(size, timeout))

    # ------------------------------------------------------------------------------------------------------- steering

    def scale(self, size: int) -> Ack:
        """Ask for `size` workers, whatever is under way: the newest such request counts.

        Raises ScaleRejected with the remedy, JobFailed when the job is over, PeerError when it has no leader for long.
        """
        return loop_thread().run(self._scale(_at_least_one("size", size)))

    def scale_out(self, workers: int = 1, *, request: str = "") -> Ack | Retry:
        """Ask for so many workers more than are asked for now. A launcher sees it (`edl run` does).

        Ack: on record, and never lost. Retry: another scaling is under way, or there is no leader just now; ask the
        same again. The same call after a Retry is the same request, which counts once even if its first answer was
        lost; a scheduler that may be restarted in between gives an id of its own by `request`.
        Raises ScaleRejected when that can never be met, with the remedy; JobFailed when the job is over.
        """
        return loop_thread().run(self._scale_out(_at_least_one("workers", workers), request))

    def scale_in(self, workers: int | Collection[str] = 1, *, request: str = "") -> Ack | Retry:
        """Ask for so many workers fewer, those who came last; or for just the workers with these ids to leave.

        As `scale_out` for the rest.
        """
        if isinstance(workers, str):
            raise UsageError(f"scale_in({workers!r}): give a number, or a list of workers' ids: [{workers!r}]")
        if not isinstance(workers, int):
            workers = tuple(workers)
            if not workers:
                raise UsageError("scale_in([]): name at least one worker, or give a number")
            return loop_thread().run(self._scale_in(workers, request))
        return loop_thread().run(self._scale_in(_at_least_one("workers", workers), request))

    def profile(self, min_p: int, max_p: int, *, batches: int = BATCHES, timeout: float = TIMEOUT_S) -> Profile:
        """Throughput and efficiency at each size from `min_p` to `max_p`, measured by scaling in from the largest.

        What was measured stays with the job, for its own policy. Afterwards it has the size again that it was asked for
        before. `timeout` in seconds, for each size. Raises ScaleRejected, TimedOut, JobFailed.
        """
        wish = Wish(_at_least_one("min_p", min_p), _at_least_one("max_p", max_p), 1, batches, timeout)
        return loop_thread().run(self._profile(wish))

    def batch(self, samples: int) -> None:
        """Have all workers together take so many samples a step from now on, however many they are.

        The rate follows where the script has called `edl.scale_rate(...)`. Raises ScaleRejected with the remedy,
        JobFailed when the job is over, PeerError when it has no leader for long.
        """
        if _at_least_one("samples", samples) > MOST:
            raise UsageError(f"samples={samples}: at most {MOST:,} can be asked for")
        loop_thread().run(self._batch(samples))

    def checkpoint(self) -> str:
        """Save the job; returns once that is durable, with the path of the checkpoint. Raises JobFailed, PeerError."""
        return loop_thread().run(self._checkpoint())

    def preempt(self, deadline: float = PREEMPT_S) -> Status:
        """Save the job and end it, so that it can be gone on with; returns when it is over, after `deadline` seconds
        saved or not: its reason says which. Raises JobFailed where it is not saved at all, PeerError.
        """
        return loop_thread().run(self._preempt(deadline))

    def migrate(self, host: str, to: str | None = None, timeout: float | None = None) -> None:
        """Have all workers of `host` leave it while the job trains; returns once none is left there.

        `to`: HOST:SLOTS, more of them after commas; without it, the other hosts of the job. Something must start
        workers there (`edl run` does). `timeout` in seconds, for the newcomers to be ready; then those on `host` stay.
        Raises ScaleRejected with the reason where they do, JobFailed, PeerError.
        """
        try:
            rooms = parse_rooms(to) if to else ()
        except ValueError as error:
            raise UsageError(f"to={to!r}: {error}") from None
        loop_thread().run(self._migrate(host, rooms, timeout or 0.0))

    def stop(self) -> None:
        """End the job cleanly; returns when it is over."""
        loop_thread().run(stopping.stop(self._where, STOP_REASON))

    # --------------------------------------------------------------------------------------------- in the loop's thread

    def _locate(self) -> Whereabouts:
        return locate(self._settings, self._secret)

    async def _opened(self) -> JobClient:
        where = self._locate()  # it may have come up, ended, or begun anew since the last call
        if self._client is None or where.coordinator != self._where.coordinator:
            await self._closed()
            self._where = where
            self._client = await where.client().__aenter__()
        return self._client

    async def _closed(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.__aexit__(None, None, None)

    async def _status(self) -> Status:
        try:
            return await (await self._opened()).status()
        except EdlError:
            where = self._locate()
            if where.folder is None or where.record is None:
                raise
            return recorded_status(where.folder, where.record)

    async def _events(self) -> list[Event]:
        """From the coordinator, where they are first; of a job of several lives that knows only those of the last."""
        record = None if self._where.folder is None else self._where.folder.read()
        if record is not None and record.events_before:
            return [from_flat(flat) async for flat in story(self._locate(), follow=False)]
        try:
            return (await (await self._opened()).events())[1]
        except EdlError:
            if self._where.folder is None:
                raise
            return [from_flat(flat) async for flat in story(self._where, follow=False)]

    async def _batch(self, samples: int) -> None:
        await (await self._opened()).batch(samples)

    async def _checkpoint(self) -> str:
        return await saved(await self._opened())

    async def _preempt(self, deadline_s: float) -> Status:
        return await preempted(await self._opened(), PREEMPTED, deadline_s, lambda: kept_status(self._where))

    async def _migrate(self, host: str, to: tuple[Room, ...], within_s: float) -> None:
        await moved(await self._opened(), host, to, within_s)

    async def _wait(self, size: int | None, timeout_s: float | None) -> Status:
        return await (await self._opened()).wait(size, timeout_s)

    async def _profile(self, wish: Wish) -> Profile:
        return await profile(await self._opened(), self.name, wish, lambda _: None)

    async def _scale(self, size: int) -> Ack:
        return await (await self._opened()).scale(size)

    async def _scale_out(self, workers: int, request: str) -> Ack | Retry:
        try:
            return await (await self._opened()).scale_out(workers, request)
        except NoSuchJob as error:
            return self._retry_while_starting(error)

    async def _scale_in(self, workers: int | tuple[str, ...], request: str) -> Ack | Retry:
        try:
            return await (await self._opened()).scale_in(workers, request)
        except NoSuchJob as error:
            return self._retry_while_starting(error)

    def _retry_while_starting(self, error: NoSuchJob) -> Retry:
        if self._locate().starting:
            return Retry(f"job {self.name} is just being started: none of its workers has joined yet")
        raise error


def _at_least_one(name: str, value: int) -> int:
    if type(value) is not int or value < 1:  # a bool is no number of workers
        raise UsageError(f"{name}={value!r}: must be a whole number of at least 1")
    return value
