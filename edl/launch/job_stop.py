"""Ending a job from outside: by asking its leader, or by a signal to its launcher here if no leader answers."""

from __future__ import annotations

import asyncio
import os
import signal

from edl.errors import EdlError, PeerError
from edl.host.host_processes import watch_exit
from edl.launch.job_records import OVER, LaunchRecord
from edl.launch.locate_job import Whereabouts

POLL_S = 0.25
TIMEOUT_S = 90.0
ANSWER_S = 5.0
ENDED = "has ended"


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
