"""Finding a job, and where to ask it: by this machine's records, or at a named coordinator; its events, and its stop.

For those that look at a job from outside: the command line, `edl.client`. A job that is over is answered for by what
its launcher has kept. A job is stopped by asking its leader, or by a signal to its launcher here if no leader answers.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterable
from typing import Any

import msgspec

from edl.config import Settings
from edl.coordination.coordinator_settings import Coordinator
from edl.errors import ConfigError, EdlError, PeerError, UsageError, did_you_mean
from edl.host.credentials import coordinator_of, with_secret
from edl.host.host_processes import watch_exit
from edl.host.job_discovery import completed
from edl.launch.job_records import OVER, Folder, LaunchRecord, find, records
from edl.outside.job_client import JobClient
from edl.protocol.record import JobState, Status


class Whereabouts(msgspec.Struct, frozen=True):
    """A job, with its record or its coordinator, or both."""

    job: str
    folder: Folder | None  # with its record, if it was started on this machine
    record: LaunchRecord | None
    coordinator: Coordinator | None  # where to ask; None when all that is left of it is the record
    secret: bytes

    @property
    def starting(self) -> bool:
        """Tell whether the job may be too young to have a leader."""
        return self.record is not None and self.record.alive and self.record.state in {"starting", "resuming"}

    def client(self) -> JobClient:
        """Raises ConfigError if the job has no coordinator, or none yet."""
        if self.coordinator is None:
            why = "is just being started" if self.record is not None and self.record.alive else "is over"
            raise ConfigError(f"job {self.job} {why}: there is no worker to ask")
        return JobClient(self.coordinator, self.job, self.secret)


def locate(settings: Settings, secret: bytes = b"") -> Whereabouts:
    """Find the named job, else the only one that runs here. Raises ConfigError or UsageError."""
    job = settings.job or only_living(records(settings.home))
    settings = completed(msgspec.structs.replace(settings, job=job))
    secret = secret or settings.secret()
    folder = find(settings.home, job)
    record = folder.read() if folder else None
    if record is not None and settings.coordinator in {None, record.coordinator}:
        return Whereabouts(job, folder, record, _coordinator(settings, record, secret), secret)
    if settings.coordinator is None:
        near = did_you_mean(job, [record.job for _, record in records(settings.home)])
        raise ConfigError(
            f"no job {job} was started on this machine{near or ':'} `edl status` lists those that were; "
            "for one that runs elsewhere name its coordinator, by --coordinator HOST:PORT or EDL_COORDINATOR"
        )
    return Whereabouts(job, None, None, _named(settings, secret), secret)


def only_living(known: Iterable[tuple[Folder, LaunchRecord]]) -> str:
    living = [record.job for _, record in known if record.alive]
    if len(living) == 1:
        return living[0]
    if living:
        raise UsageError(f"several jobs run here, name one: {', '.join(living)}")
    raise UsageError("no job runs here: name one, or see `edl status` for those that ran")


def _coordinator(settings: Settings, record: LaunchRecord, secret: bytes) -> Coordinator | None:
    """Return where to ask: a launcher's own coordinator ends with it, another one outlives the job."""
    if not record.own_coordinator:
        return _named(settings, secret)
    if not record.alive or not record.coordinator:
        return None
    return with_secret(Coordinator(record.coordinator), secret)


def _named(settings: Settings, secret: bytes) -> Coordinator | None:
    found = coordinator_of(msgspec.structs.replace(settings, secret_file=None))
    return None if found is None else with_secret(found, secret)


def kept_status(where: Whereabouts) -> Status | None:
    """Return what this machine's launcher knows; None if it has no record of the job."""
    record = where.folder.read() if where.folder is not None else None
    return None if where.folder is None or record is None else recorded_status(where.folder, record)


async def read_status(where: Whereabouts) -> Status:
    """Return the status from the leader; without an answer, the last known one. Raises EdlError."""
    try:
        async with where.client() as job:
            return await job.status()
    except EdlError:
        if where.folder is None or where.record is None:
            raise
        return recorded_status(where.folder, where.record)


def recorded_status(folder: Folder, record: LaunchRecord) -> Status:
    """Return the last status that the launcher kept. The launch's end counts more than the last leader's word."""
    try:
        status = msgspec.json.decode(folder.status.read_bytes(), type=Status)
    except (OSError, msgspec.MsgspecError):
        status = _blank(record)
    if record.alive and record.state == JobState.RESUMING:  # between two lives, or before the next one is heard of
        return msgspec.structs.replace(status, state=JobState.RESUMING, reason=record.reason, workers=(), size=0)
    if record.alive:
        return status
    state, reason = (
        (record.state, record.reason) if record.state in OVER else ("failed", f"{record.launcher} was killed")
    )
    return msgspec.structs.replace(status, state=JobState(state), reason=reason)


def _blank(record: LaunchRecord) -> Status:
    # No leader of this job was ever heard.
    return Status(
        job=record.job,
        state=JobState(record.state),
        reason=record.reason,
        term=0,
        generation=0,
        leader="",
        step=0,
        epoch=0,
        size=0,
        target=record.np,
        min_workers=record.min_workers,
        max_workers=record.max_workers or 0,
        workers=(),
        data=None,
        spec=None,
    )


POLL_S = 0.25
TIMEOUT_S = 90.0
ANSWER_S = 5.0
ENDED = "has ended"
NEWEST_S = 2.0  # for a coordinator to tell what the launcher, who looks every second, has not kept yet


async def stop(where: Whereabouts, reason: str) -> str:
    """Stop the job. Return the outcome, to be put after the job's name. Raises EdlError."""
    record = where.record
    launcher = record if record is not None and record.alive else None
    if where.coordinator is None and launcher is None and record is not None:
        return f"is over already ({record.shown_state})"
    try:
        async with asyncio.timeout(TIMEOUT_S):
            here = launcher is not None and launcher.here
            return await (_stop_here(where, launcher, reason) if launcher and here else _stop_elsewhere(where, reason))
    except TimeoutError:
        who = f": {launcher.launcher_words} still runs" if launcher else ""
        raise PeerError(f"job {where.job} was told to stop, and has not within {TIMEOUT_S:g} s{who}") from None


async def _stop_here(where: Whereabouts, launcher: LaunchRecord, reason: str) -> str:
    try:
        async with where.client() as job:
            await job.stop(reason, timeout_s=ANSWER_S)
    except EdlError:  # no leader to ask: the job is starting, or stuck
        os.kill(launcher.launcher_pid, signal.SIGTERM)
    ended = asyncio.Event()
    watch_exit(launcher.launcher_pid, lambda _: ended.set(), started=launcher.launcher_start)
    await ended.wait()
    return ENDED


async def _stop_elsewhere(where: Whereabouts, reason: str) -> str:
    async with where.client() as job:
        state = (await job.status()).state.value
        if state in OVER:
            return f"is over already ({state})"
        await job.stop(reason)
        while (await job.status()).state.value not in OVER:  # noqa: ASYNC110 - nothing tells of it but asking
            await asyncio.sleep(POLL_S)
    return ENDED


async def story(where: Whereabouts, *, follow: bool) -> AsyncIterator[dict[str, Any]]:
    """Yield all events, oldest first; with `follow` also those to come, until the job is over."""
    if where.folder is not None:
        kept = 0
        async for event in _recorded(where.folder, follow):
            yield event
            kept += 1
        if kept and not follow and where.record is not None and where.record.alive:
            for event in await _newer(where, kept - where.record.events_before):
                yield event
        return
    async with where.client() as client:
        async for event in _told(client, follow):
            yield event


async def _recorded(folder: Folder, follow: bool) -> AsyncIterator[dict[str, Any]]:
    """Yield events from the launcher's files, which are there after the job, and while the coordinator is down."""
    rest, offset = b"", 0
    while True:
        record = folder.read()
        last = not follow or record is None or not record.alive  # before reading: its last events come before its end
        piece = _kept_since(folder, offset)
        offset += len(piece)
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield msgspec.json.decode(line)
        if last:
            return
        await asyncio.sleep(POLL_S)


def _kept_since(folder: Folder, offset: int) -> bytes:
    try:
        with folder.events.open("rb") as file:
            file.seek(offset)
            return file.read()
    except FileNotFoundError:  # nothing is kept yet, or another job of that name has just been started
        return b""


async def _newer(where: Whereabouts, kept: int) -> list[dict[str, Any]]:
    """Return the events after the first `kept`; none if no leader answers."""
    try:
        async with asyncio.timeout(NEWEST_S), where.client() as client:
            return [event.flat() for event in (await client.events(kept))[1]]
    except (EdlError, TimeoutError):
        return []


async def _told(client: JobClient, follow: bool) -> AsyncIterator[dict[str, Any]]:
    if not follow:
        for event in (await client.events())[1]:
            yield event.flat()
        return
    async for event in client.follow():
        yield event.flat()
