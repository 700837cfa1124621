"""`edl checkpoint JOB` and `edl preempt`: save a job now, and perhaps end it."""

from __future__ import annotations

import argparse
import asyncio
import secrets

from edl.cli import tables
from edl.cli.commands import heed_interrupts, located, seconds
from edl.errors import EdlError
from edl.launch.locate_job import Whereabouts, kept_status
from edl.outside.save_requests import PREEMPT_S, preempted, saved

REASON = "preempted by `edl preempt`"


def checkpoint(arguments: argparse.Namespace) -> int:
    where = located(arguments)
    tables.say(asyncio.run(_checkpoint(where, wait=arguments.wait)))
    return 0


async def _checkpoint(where: Whereabouts, *, wait: bool) -> str:
    heed_interrupts()
    try:
        async with where.client() as job:
            if not wait:
                await job.checkpoint(secrets.token_hex(8))
                return f"job {where.job}: a checkpoint is asked for"
            return f"job {where.job} is saved: {await saved(job)}"
    except asyncio.CancelledError:
        raise EdlError("interrupted; the checkpoint stays asked for") from None


def preempt(arguments: argparse.Namespace) -> int:
    where = located(arguments)
    deadline_s = seconds(arguments.deadline, "--deadline", or_none=True)
    status = asyncio.run(_preempt(where, PREEMPT_S if deadline_s is None else deadline_s))
    tables.say(f"job {where.job} is preempted: {status}")
    return 1 if "could not be saved" in status else 0


async def _preempt(where: Whereabouts, deadline_s: float) -> str:
    heed_interrupts()
    try:
        async with where.client() as job:
            return (await preempted(job, REASON, deadline_s, lambda: kept_status(where))).reason
    except asyncio.CancelledError:
        raise EdlError(f"interrupted; job {where.job} goes all the same") from None
