"""The commands about a job that is there already: status, events, scale, stop; and doctor."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from edl.cli import show
from edl.cli.jobs import Target, locate, read_status
from edl.config import Settings
from edl.errors import EdlError, PeerError, ScaleRejected, UsageError
from edl.events import Event, Kind
from edl.launch.records import OVER, Folder, Record, records
from edl.runtime.client import JobClient
from edl.runtime.processes import watch_exit

POLL_S = 0.25
STOP_TIMEOUT_S = 90.0
STOP_ANSWER_S = 5.0
ENDED = "has ended"
STOP_REASON = "stopped by `edl stop`"


def status(arguments: argparse.Namespace) -> int:
    home = Settings.from_given(arguments.given, os.environ).home
    known = [record for _, record in records(home)]
    if arguments.job is None and "EDL_JOB" not in os.environ and sum(record.alive for record in known) != 1:
        return _list(known, arguments.json)
    found = asyncio.run(read_status(locate(arguments)))
    if arguments.json:
        sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
    else:
        show.show_status(found)
    return 0


def _list(known: list[Record], json: bool) -> int:
    if json:
        jobs = [{"job": record.job, "state": show.state_of(record), "started": record.started} for record in known]
        sys.stdout.buffer.write(msgspec.json.encode({"jobs": jobs}) + b"\n")
    else:
        show.show_records(known)
    return 0


# -------------------------------------------------------------------------------------------------------- events


def events(arguments: argparse.Namespace) -> int:
    asyncio.run(_print_events(locate(arguments), json=arguments.json, follow=arguments.follow))
    return 0


async def _print_events(target: Target, *, json: bool, follow: bool) -> None:
    story = _recorded(target.folder, follow) if target.folder else _told(target, follow)
    async for event in story:
        line = msgspec.json.encode(event).decode() if json else show.event_line(event)
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


async def _recorded(folder: Folder, follow: bool) -> AsyncIterator[dict[str, Any]]:
    """From the record that the launcher keeps: it is there after the job, and while the coordinator is down."""
    rest, offset = b"", 0
    while True:
        record = folder.read()
        last = not follow or record is None or not record.alive  # before reading: its last events come before its end
        if folder.events.exists():
            with folder.events.open("rb") as file:
                file.seek(offset)
                piece = file.read()
            offset += len(piece)
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                yield msgspec.json.decode(line)
        if last:
            return
        await asyncio.sleep(POLL_S)


async def _told(target: Target, follow: bool) -> AsyncIterator[dict[str, Any]]:
    """From the coordinator."""
    async with target.client() as job:
        after = 0
        while True:
            after, new = await job.events(after)
            for event in new:
                yield event.flat()
            if not follow or any(event.kind in {Kind.JOB_FINISHED, Kind.JOB_FAILED} for event in new):
                return
            await asyncio.sleep(POLL_S)


# ------------------------------------------------------------------------------------------------- scale and stop


def scale(arguments: argparse.Namespace) -> int:
    if not arguments.size.isdecimal() or int(arguments.size) < 1:
        raise UsageError(f"{arguments.size}: the number of workers must be a whole number of at least 1")
    target = locate(arguments)
    try:
        line = asyncio.run(_scale(target, int(arguments.size), wait=arguments.wait))
    except ScaleRejected as rejected:
        raise EdlError(f"job {target.job} cannot have {arguments.size} workers: {rejected.reason}") from None
    show.say(line)
    return 0


async def _scale(target: Target, size: int, *, wait: bool) -> str:
    async with target.client() as job:
        after, _ = await job.events(0)
        await job.scale(size)
        if not wait:
            return f"job {target.job}: {size} workers asked for"
        await _wait_size(job, size)
        _, new = await job.events(after)
    return f"job {target.job} has {size} workers{_pause(new, size)}"


async def _wait_size(job: JobClient, size: int) -> None:
    while True:
        now = await job.status()
        if now.state.value in OVER:
            raise EdlError(f"job {now.job} is over ({now.state.value}): it never had {size} workers")
        if now.target != size:
            raise EdlError(f"job {now.job} was asked for {now.target} workers meanwhile")
        if now.size == size and now.state.value == "running":
            return
        await asyncio.sleep(POLL_S)


def _pause(new: list[Event], size: int) -> str:
    pauses = [e.details.get("pause_ms") for e in new if e.kind is Kind.SCALED and e.details.get("to") == size]
    return f"; its survivors paused for {pauses[-1]:.0f} ms" if pauses and pauses[-1] is not None else ""


def stop(arguments: argparse.Namespace) -> int:
    target = locate(arguments)
    record = target.record
    if target.coordinator is None and record is not None and not record.alive:
        show.say(f"job {target.job} is over already ({show.state_of(record)})")
        return 0
    show.say(f"job {target.job} {asyncio.run(_stop(target))}")
    return 0


async def _stop(target: Target) -> str:
    launcher = target.record if target.record is not None and target.record.alive else None
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            return await (_stop_here(target, launcher) if launcher else _stop_elsewhere(target))
    except TimeoutError:
        who = f": `edl run` (pid {launcher.launcher_pid}) still runs" if launcher else ""
        raise PeerError(f"job {target.job} was told to stop, and has not within {STOP_TIMEOUT_S:g} s{who}") from None


async def _stop_here(target: Target, launcher: Record) -> str:
    try:
        async with target.client() as job:
            await job.stop(STOP_REASON, timeout_s=STOP_ANSWER_S)
    except EdlError:  # no leader to ask: the job is starting, or stuck
        os.kill(launcher.launcher_pid, signal.SIGTERM)
    ended = asyncio.Event()
    watch_exit(launcher.launcher_pid, lambda _: ended.set(), started=launcher.launcher_start)
    await ended.wait()
    return ENDED


async def _stop_elsewhere(target: Target) -> str:
    async with target.client() as job:
        state = (await job.status()).state.value
        if state in OVER:
            return f"is over already ({state})"
        await job.stop(STOP_REASON)
        while (await job.status()).state.value not in OVER:  # noqa: ASYNC110 - nothing tells of it but asking
            await asyncio.sleep(POLL_S)
    return ENDED


# -------------------------------------------------------------------------------------------------------- doctor


def doctor(arguments: argparse.Namespace) -> int:
    from edl.launch.doctor import run as look  # only here: it looks at much that no other command needs

    return look(json=arguments.json)
