"""The events of a job, flattened, from its launcher's files or from the coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from edl.errors import EdlError
from edl.launch.job_records import Folder
from edl.launch.locate_job import Whereabouts
from edl.outside.job_client import JobClient

POLL_S = 0.25
NEWEST_S = 2.0  # for a coordinator to tell what the launcher, who looks every second, has not kept yet


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
