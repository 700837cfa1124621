"""`edl batch`: ask for another batch of a job that trains."""

from __future__ import annotations

import argparse
import asyncio

from edl.cli import tables
from edl.cli.commands import heed_interrupts, located
from edl.errors import EdlError, ScaleRejected, UsageError
from edl.launch.locate_job import Whereabouts
from edl.protocol.job_policy import MOST


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
