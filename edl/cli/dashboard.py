"""`edl dashboard`: serves a job's page until Ctrl-C, and prints the link that opens it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import socket
import sys

import msgspec

from edl.cli import show
from edl.cli.commands import heed_interrupts, located
from edl.config import Settings, any_port
from edl.errors import ConfigError, EdlError
from edl.host.network import LOOPBACK
from edl.launch.whereabouts import Whereabouts, locate

LOOK_S = 10.0  # for a job to be heard of


def dashboard(arguments: argparse.Namespace) -> int:
    try:
        from edl.dashboard.server import listen
    except ImportError as error:
        raise ConfigError(f"edl dashboard needs {error.name}: pip install 'horovod-edl[dashboard]'") from None
    where = located(arguments)
    ear = listen(LOOPBACK, port_of(arguments.port))
    with ear, contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
        asyncio.run(_serve(arguments, where, ear))
    return 0


def port_of(text: str) -> int:
    """Raises ConfigError."""
    try:
        return any_port(text)
    except ValueError as error:
        raise ConfigError(f"--port {text}: {error}") from None


async def _serve(arguments: argparse.Namespace, where: Whereabouts, ear: socket.socket) -> None:
    from edl.dashboard.access import Access
    from edl.dashboard.buttons import press
    from edl.dashboard.feed import Feed
    from edl.dashboard.server import PageServer

    settings = msgspec.structs.replace(Settings.from_given(arguments.given, os.environ), job=where.job)

    def find() -> Whereabouts:
        return locate(settings)

    heed_interrupts()
    feed = Feed(find)
    feeding = asyncio.create_task(feed.run())
    try:
        if not await feed.heard(LOOK_S):
            raise EdlError(f"job {where.job} is not heard of: `edl status {where.job}` says more")
        access = Access.fresh(ear.getsockname()[1], LOOPBACK)
        act = (lambda what: press(find, what)) if arguments.allow_scale else None
        show.say(f"job {where.job}: {access.link}")
        sys.stdout.flush()
        await PageServer(feed, access, act).serve(ear)
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
