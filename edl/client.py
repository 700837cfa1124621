"""A running job for schedulers and scripts: see it, make it grow and shrink, wait for it, end it. docs/scaling.md.

    from edl.client import Ack, Job, Retry

    with Job("mnist") as job:
        match job.scale_out(2):
            case Ack(target):
                job.wait(target, timeout=600)
            case Retry(reason):
                ...  # nothing has changed: ask the same again later

Synchronous, for one thread at a time. Owns: the calls and their checks. Does not own: asking a leader, and that each
request counts once (`edl.outside.job_client`); which sizes a job may have (its leader decides).

Coroutines run in one event loop of the process, in a thread of its own: so calls work in notebooks and inside other
loops, sessions stay alive between calls, and gRPC meets one loop only.
"""

from __future__ import annotations

import asyncio
import functools
import math
import os
import threading
from collections.abc import Collection, Coroutine, Iterator
from types import TracebackType
from typing import Any, TypeVar

import msgspec

from edl import ownership
from edl.config import Given, Settings
from edl.errors import ConfigError, EdlError, NoSuchJob, TimedOut, UsageError
from edl.events import Event, from_flat
from edl.launch import locate_job
from edl.launch.host_slots import parse_rooms
from edl.launch.locate_job import Whereabouts, kept_status, locate, recorded_status, story
from edl.outside.job_client import PREEMPT_S, PREEMPTED, Ack, JobClient, Retry, moved, preempted, saved
from edl.outside.size_profile import BATCHES, TIMEOUT_S, Profile, Wish, profile
from edl.protocol.job_policy import MOST
from edl.protocol.record import JobState, Room, Status, WorkerState, WorkerStatus

T = TypeVar("T")


class LoopThread:
    """A thread that runs an event loop until the process ends."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="edl-client", daemon=True)

    def start(self) -> None:
        self._thread.start()
        ownership.at_exit(self._stop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine and return its result. An interrupt of the caller (Ctrl-C) cancels it."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=1.0)
        if not self._thread.is_alive():
            self._loop.close()


@functools.cache
def loop_thread() -> LoopThread:
    """Return the process's only LoopThread; the first call starts it."""
    thread = LoopThread()
    thread.start()
    return thread


__all__ = ["Ack", "Event", "Job", "JobState", "Profile", "Retry", "Status", "WorkerState", "WorkerStatus"]

STOP_REASON = "stopped by edl.client"
LOOK_S = 0.1  # between two looks for the first worker of a job that is starting


class Job:
    """A handle on one job: use it as a context manager, or call `close()` at the end. Every call
    may raise an EdlError.

    >>> with Job("mnist") as job:
    ...     status = job.status()
    ...     print(status.state, len(status.workers), "workers")
    running 1 workers
    """

    def __init__(self, name: str | None = None, *, coordinator: str | None = None, secret: bytes | None = None) -> None:
        """Find the job. `name` defaults to EDL_JOB, else to the only job that runs on this machine.

        A job that was started on this machine needs nothing else. For another give its `coordinator` (default:
        EDL_COORDINATOR) and, if it was started with one, its `secret` (default: the content of EDL_SECRET_FILE). Raises
        ConfigError, UsageError.
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
        """Close the connection. The next call opens another one."""
        if self._client is not None:
            loop_thread().run(self._closed())

    # -------------------------------------------------------------------------------------------------------- looking

    def status(self) -> Status:
        """Return the job's present status, or the last one seen if the job is over; it is what `edl status --json`
        shows.
        """
        return loop_thread().run(self._status())

    def events(self) -> list[Event]:
        """Return all events so far, oldest first."""
        return loop_thread().run(self._events())

    def follow(self) -> Iterator[Event]:
        """Yield all events so far, oldest first, then each new event as it happens; end with the job."""
        told = story(self._where, follow=True)

        async def following() -> dict[str, Any] | None:
            return await anext(told, None)

        while (flat := loop_thread().run(following())) is not None:
            yield from_flat(flat)

    def wait(self, size: int | None = None, timeout: float | None = None) -> Status:
        """Wait until `size` workers train, by default as many as are asked for. `timeout` is in seconds; None means no
        limit. A job that `edl run` is just starting is waited for, as long as `edl run` lives.

        Raises TimedOut (a TimeoutError), and JobFailed when the job is over first.
        """
        return loop_thread().run(self._wait(size, timeout))

    # ------------------------------------------------------------------------------------------------------- steering

    def scale(self, size: int) -> Ack:
        """Ask for `size` workers. The newest request counts, even while an earlier one is being carried out.

        Raises ScaleRejected with the remedy, JobFailed when the job is over, PeerError when it has no leader for long.
        """
        return loop_thread().run(self._scale(_at_least_one("size", size)))

    def scale_out(self, workers: int = 1, *, request: str = "") -> Ack | Retry:
        """Ask for `workers` more workers than are asked for now. A launcher (`edl run`) starts them.

        Ack means that the request is on record and is never lost. Retry means that another scaling is under way, or
        that there is no leader just now; make the same call again. The same call after a Retry is the same request,
        which counts once even if its first answer was lost; a scheduler that may be restarted in between gives an id of
        its own by `request`. Raises ScaleRejected with the remedy when the request can never be met; JobFailed when the
        job is over.
        """
        return loop_thread().run(self._scale_out(_at_least_one("workers", workers), request))

    def scale_in(self, workers: int | Collection[str] = 1, *, request: str = "") -> Ack | Retry:
        """Ask for `workers` fewer workers, of which the newest leave, or for the workers with the given ids to leave.

        Answers, `request` and errors are those of `scale_out`.
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
        """Measure throughput and efficiency at each size from `max_p` down to `min_p`, by scaling in.

        The job's own policy keeps the measurements. Afterwards the job is asked for its former size again. `timeout` is
        in seconds, for each size. Raises ScaleRejected, TimedOut, JobFailed.
        """
        wish = Wish(_at_least_one("min_p", min_p), _at_least_one("max_p", max_p), 1, batches, timeout)
        return loop_thread().run(self._profile(wish))

    def batch(self, samples: int) -> None:
        """Set the number of samples that all workers together take in a step from now on.

        The learning rate follows if the script has called `edl.scale_rate(...)`. Raises ScaleRejected with the remedy,
        JobFailed when the job is over, PeerError when it has no leader for long.
        """
        if _at_least_one("samples", samples) > MOST:
            raise UsageError(f"samples={samples}: at most {MOST:,} can be asked for")
        loop_thread().run(self._batch(samples))

    def checkpoint(self) -> str:
        """Save the job; return the checkpoint's path once it is durable. Raises JobFailed, PeerError."""
        return loop_thread().run(self._checkpoint())

    def preempt(self, deadline: float = PREEMPT_S) -> Status:
        """Save the job and end it, so that it can be resumed; return when it is over. After `deadline` seconds the job
        ends, saved or not; the reason in the returned status says which. Raises JobFailed if the job has no
        checkpoints, PeerError.
        """
        return loop_thread().run(self._preempt(deadline))

    def migrate(self, host: str, to: str | None = None, timeout: float | None = None) -> None:
        """Move all workers off `host` while the job trains; return once none is left there.

        `to` is HOST:SLOTS, or several of them separated by commas; by default the job's other hosts. A launcher (`edl
        run`) must start workers there. `timeout` is in seconds, for the newcomers to be ready; if they are not, the
        workers on `host` stay. Raises ScaleRejected with the reason in that case, JobFailed, PeerError.
        """
        try:
            rooms = parse_rooms(to) if to else ()
        except ValueError as error:
            raise UsageError(f"to={to!r}: {error}") from None
        loop_thread().run(self._migrate(host, rooms, timeout or 0.0))

    def stop(self) -> None:
        """End the job cleanly; return when it is over."""
        loop_thread().run(locate_job.stop(self._where, STOP_REASON))

    # --------------------------------------------------------------------------------------------- in the loop's thread

    def _locate(self) -> Whereabouts:
        return locate(self._settings, self._secret)

    async def _opened(self) -> JobClient:
        where = self._locate()  # the job may have started, ended or been resumed since the last call
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
        """Read events from the coordinator, which has them first. If the job was resumed, read the launcher's record,
        because the coordinator has only the events since the last resume.
        """
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
        clock = asyncio.get_running_loop().time
        deadline = math.inf if timeout_s is None else clock() + timeout_s
        while True:
            left_s = None if timeout_s is None else round(max(0.0, deadline - clock()), 1)
            try:
                return await (await self._opened()).wait(size, left_s)
            except (NoSuchJob, ConfigError):  # ConfigError: not even its coordinator is there
                if not self._locate().starting:
                    raise
            if clock() > deadline:
                raise TimedOut(f"no worker of job {self.name} has joined within {timeout_s:g} s: it is being started")
            await asyncio.sleep(LOOK_S)

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
