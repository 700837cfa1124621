"""`edl scale`, `batch`, `migrate`: ask for a size, a batch, or that all workers leave a host; report progress."""

from __future__ import annotations

import argparse
import asyncio
import sys

from edl.cli import tables
from edl.cli.commands import cluster_with, heed_interrupts, located, seconds
from edl.cli.tables import counted
from edl.errors import EdlError, NoSuchJob, ScaleRejected, TimedOut, UsageError
from edl.events import Event, Kind
from edl.launch.host_slots import parse_rooms
from edl.launch.locate_job import Whereabouts
from edl.outside.job_client import moved, when_back
from edl.protocol.job_policy import MOST
from edl.protocol.record import Room, Status

ASK_S = 60.0  # time for a coordinator and a leader to be back, unless `--timeout` is given (I11, I12)
LEAST_S = 5.0  # least time for the request itself, however late the coordinator was back
NONE_YET = "none of its workers has called edl.init() yet"
SILENT_S = 2.0  # a request without an answer for longer is told of


def scale(arguments: argparse.Namespace) -> int:
    if not arguments.size.isdecimal() or int(arguments.size) < 1:
        raise UsageError(f"{arguments.size}: the number of workers must be a whole number of at least 1")
    size, timeout_s = int(arguments.size), seconds(arguments.timeout)
    if (cluster := cluster_with(arguments)) is not None:
        from edl.cli.cluster_scale import scale_in_cluster  # only where there is a cluster

        return scale_in_cluster(cluster, arguments.job, size, timeout_s=timeout_s, wait=arguments.wait)
    where = located(arguments)
    asked = f"{tables.stays(size)}: `edl status {where.job}` shows how far it is"
    progress = tables.Progress(sys.stderr)
    try:
        line = asyncio.run(_scale(where, size, progress, timeout_s=timeout_s, wait=arguments.wait))
    except ScaleRejected as rejected:
        raise EdlError(f"job {where.job} cannot have {counted(size, 'worker')}: {rejected.reason}") from None
    except TimedOut as late:
        raise TimedOut(f"{late}; {asked}") from None
    except asyncio.CancelledError:
        raise EdlError(f"interrupted; {asked}" if progress.shown else "interrupted") from None
    finally:
        progress.end()
    tables.say(line)
    return 0


async def _scale(
    where: Whereabouts, size: int, progress: tables.Progress, *, timeout_s: float | None, wait: bool
) -> str:
    def seen(status: Status) -> None:
        if status.target != size:
            raise EdlError(f"job {status.job} was asked for {counted(status.target, 'worker')} meanwhile")
        progress.show(tables.progress(status))

    heed_interrupts()
    patience_s, clock, waiting = timeout_s or ASK_S, asyncio.get_running_loop().time, tables.Progress(sys.stderr)
    deadline = clock() + patience_s
    # so the address of its coordinator is right: it is only away
    runs_here = where.record is not None and where.record.alive
    back = when_back(where.client(), patience_s if runs_here else 0.0, lambda why: waiting.show(_not_asked(size, why)))

    def reason(error: Exception) -> str:
        return NONE_YET if runs_here and isinstance(error, NoSuchJob) else str(error)

    async with back as job:
        waiting.end()
        after = (await job.events())[0] if wait else 0
        silent_until = clock() + SILENT_S

        def unanswered(error: Exception) -> None:
            if clock() > silent_until:
                waiting.show(f"{_not_yet(size)}: {reason(error)}")

        try:
            await job.scale(size, max(deadline - clock(), LEAST_S), unanswered)
        except NoSuchJob as error:
            raise EdlError(f"job {where.job} cannot have {counted(size, 'worker')}: {reason(error)}") from None
        waiting.end()
        if not wait:
            return f"job {where.job}: {counted(size, 'worker')} asked for"
        await job.wait(size, timeout_s, seen)
        _, new = await job.events(after)
    return f"job {where.job} has {counted(size, 'worker')}{pause(new)}"


def _not_asked(size: int, why: str) -> str:
    return f"{_not_yet(size)}, as soon as it is there again: {why}"


def _not_yet(size: int) -> str:
    return f"{counted(size, 'worker')} {'is' if size == 1 else 'are'} not asked for yet"


def pause(new: list[Event]) -> str:
    """Describe the newest pause of survivors in these events; "" if there was none."""
    pauses = [event.details.get("pause_ms") for event in new if event.kind is Kind.SCALED]
    known = [one for one in pauses if one is not None]
    return f"; its survivors paused for {known[-1]:.0f} ms" if known else ""


def batch(arguments: argparse.Namespace) -> int:
    if not arguments.samples.isdecimal() or not 1 <= int(arguments.samples) <= MOST:
        raise UsageError(f"{arguments.samples}: the samples of a step must be a whole number from 1 to {MOST:,}")
    where, samples = located(arguments), int(arguments.samples)
    try:
        asyncio.run(_batch(where, samples))
    except ScaleRejected as rejected:
        raise EdlError(f"job {where.job} cannot have a batch of {samples}: {rejected.reason}") from None
    except asyncio.CancelledError:
        raise EdlError("interrupted") from None
    tables.say(f"job {where.job}: {samples} samples a step asked for, of all workers together")
    return 0


async def _batch(where: Whereabouts, samples: int) -> None:
    heed_interrupts()
    async with where.client() as job:
        await job.batch(samples)


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
