"""`edl migrate`: move all workers of a host to others, and report progress."""

from __future__ import annotations

import argparse
import asyncio
import sys

from edl.cli import tables
from edl.cli.commands import heed_interrupts, located, seconds
from edl.cli.scale import pause
from edl.errors import EdlError, ScaleRejected, UsageError
from edl.launch.host_slots import parse_rooms
from edl.launch.locate_job import Whereabouts
from edl.outside.migrate_request import moved
from edl.protocol.migration_record import Room


def migrate(arguments: argparse.Namespace) -> int:
    if not arguments.left:
        raise UsageError("--from HOST is missing: `edl status` shows the hosts of a job's workers")
    to, within_s = _hosts(arguments.to), seconds(arguments.timeout)
    where, host, progress = located(arguments), arguments.left, tables.Progress(sys.stderr)
    try:
        line = asyncio.run(_migrate(where, host, to, within_s or 0.0, progress))
    except ScaleRejected as rejected:
        raise EdlError(f"job {where.job} does not leave {host}: {rejected.reason}") from None
    finally:
        progress.end()
    tables.say(line)
    return 0


def _hosts(text: str | None) -> tuple[Room, ...]:
    try:
        return parse_rooms(text) if text else ()
    except ValueError as error:
        raise UsageError(f"--to {text}: {error}") from None


async def _migrate(
    where: Whereabouts, host: str, to: tuple[Room, ...], within_s: float, progress: tables.Progress
) -> str:
    heed_interrupts()
    try:
        async with where.client() as job:
            after, _ = await job.events()
            await moved(job, host, to, within_s, lambda status: progress.show(tables.moving(status)))
            _, new = await job.events(after)
    except asyncio.CancelledError:
        raise EdlError(f"interrupted; job {where.job} leaves {host} all the same") from None
    return f"job {where.job} has left {host}{pause(new)}"
