"""`edl top`: show a job in the terminal while it runs."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys

import msgspec
from rich.live import Live

from edl.cli.commands import heed_interrupts, settings_for
from edl.config import Settings
from edl.dashboard.page_feed import Feed
from edl.dashboard.terminal import print_screen, screen
from edl.errors import EdlError
from edl.launch.locate_job import Whereabouts, locate

LOOK_S = 10.0  # for the first status of a job to arrive
FIRST_S = 1.5  # for a second report: the use of workers' time is the difference of two
REDRAW_S = 0.25


def top(arguments: argparse.Namespace) -> int:
    settings = settings_for(arguments)
    where = locate(settings)
    with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
        asyncio.run(_show(where, msgspec.structs.replace(settings, job=where.job)))
    return 0


async def _show(where: Whereabouts, settings: Settings) -> None:
    heed_interrupts()
    feed = Feed(lambda: locate(settings))
    feeding = asyncio.create_task(feed.run())
    try:
        if not await feed.heard(LOOK_S):
            raise EdlError(f"job {where.job} is not heard of: `edl status {where.job}` says more")
        await (_live(feed, feeding) if sys.stdout.isatty() else _once(feed, feeding))
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)


async def _once(feed: Feed, feeding: asyncio.Task[None]) -> None:
    await asyncio.wait({feeding}, timeout=FIRST_S)
    print_screen(feed)


async def _live(feed: Feed, feeding: asyncio.Task[None]) -> None:
    with Live(screen(feed), auto_refresh=False, screen=True) as live:
        while not feeding.done():
            news = feed.news
            live.update(screen(feed), refresh=True)
            await feed.wait(news, 1.0)
            await asyncio.sleep(REDRAW_S)
    print_screen(feed)  # so that the final state stays on the terminal
