"""`edl report`: a job's page as one file."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from edl.cli import tables
from edl.cli.commands import located
from edl.dashboard import page_report as dashboard_report
from edl.dashboard.page_feed import Feed
from edl.errors import ConfigError
from edl.launch.locate_job import Whereabouts


def report(arguments: argparse.Namespace) -> int:
    where, target = located(arguments), Path(arguments.html).expanduser()
    if not target.parent.is_dir():
        raise ConfigError(f"--html {target}: there is no folder {target.parent}")
    text = asyncio.run(_page(where))
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--html {target}: cannot be written: {error.strerror}") from None
    tables.say(f"job {where.job}: {target}, {len(text) // 1000} kB")
    return 0


async def _page(where: Whereabouts) -> str:
    """Render the page of a job that is over, or was started elsewhere and can be asked."""
    feed = Feed(lambda: where)
    await feed.read_all()
    return dashboard_report.report(feed)
