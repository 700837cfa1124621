"""`edl dashboard`, `edl report` and `edl top`: serve a job's page until Ctrl-C, and print the link that opens it; write
the page as one file; or show the job in the terminal while it runs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
from rich.live import Live

from edl.cli import tables
from edl.cli.cluster_scale import home_of, is_remote, reached
from edl.cli.commands import heed_interrupts, located, settings_for
from edl.cluster.queue.job_view import JobShown
from edl.config import Settings
from edl.config.value_parsers import any_port
from edl.dashboard import page_feed
from edl.dashboard import page_report as dashboard_report
from edl.dashboard.page_feed import Feed
from edl.dashboard.page_report import ComparedRun, comparison
from edl.dashboard.terminal import print_screen, screen
from edl.errors import ConfigError, EdlError
from edl.host.network import LOOPBACK
from edl.launch.locate_job import Whereabouts, locate
from edl.scheduler.cluster_client import ClusterStatus

ClusterSeen = tuple[ClusterStatus, tuple[JobShown, ...]]

LOOK_S = 10.0  # for the first status of a job to arrive


def dashboard(arguments: argparse.Namespace) -> int:
    try:
        from edl.host.http_serving import listen
    except ImportError as error:
        raise ConfigError(f"edl dashboard needs {error.name}: pip install 'horovod-edl[dashboard]'") from None
    if of_cluster(arguments):
        return show_cluster(arguments, listen)
    settings = settings_for(arguments)
    where = locate(settings)
    ear = listen(LOOPBACK, port_of(arguments.port))
    with ear, contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
        asyncio.run(_serve(where, msgspec.structs.replace(settings, job=where.job), ear, act=arguments.allow_scale))
    return 0


def of_cluster(arguments: argparse.Namespace) -> bool:
    """Tell whether the page is a cluster's: no job is named, and a cluster is, or one runs here."""
    if arguments.job is not None:
        return False
    return is_remote(arguments) or ("EDL_JOB" not in os.environ and bool(home_of(arguments)[1].living()))


def show_cluster(arguments: argparse.Namespace, listen: Callable[[str, int], socket.socket]) -> int:
    if arguments.allow_scale:
        raise ConfigError("--allow-scale gives buttons to the page of a job: name the job")
    ear = listen(LOOPBACK, port_of(arguments.port))
    with ear, contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
        asyncio.run(_serve_cluster(arguments, ear))
    return 0


async def _serve_cluster(arguments: argparse.Namespace, ear: socket.socket) -> None:
    from edl.dashboard.cluster_server import ClusterFeed, ClusterPageServer, LooksHere
    from edl.dashboard.site import Access

    heed_interrupts()
    here = LooksHere(home_of(arguments)[1])
    feed = ClusterFeed(_looks_there(arguments) if is_remote(arguments) else here)
    feeding = asyncio.create_task(feed.run())
    try:
        if not await feed.heard(LOOK_S):
            raise EdlError(f"the cluster is not heard of: {feed.away or '`edl cluster status` says more'}")
        access = Access.fresh(ear.getsockname()[1], LOOPBACK)
        tables.say(f"cluster: {access.link}")
        sys.stdout.flush()
        await ClusterPageServer(feed, access).serve(ear)
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
        await here.close()


def _looks_there(arguments: argparse.Namespace) -> Callable[[], Awaitable[ClusterSeen]]:
    from edl.launch.job_run import in_a_thread  # Ctrl-C does not wait for it
    from edl.scheduler.remote_cluster import RemoteCluster

    cluster = reached(arguments)
    assert isinstance(cluster, RemoteCluster)

    async def look() -> ClusterSeen:
        return await in_a_thread(lambda: (cluster.status(), cluster.whole_jobs()))

    return look


def port_of(text: str) -> int:
    """Raises ConfigError."""
    try:
        return any_port(text)
    except ValueError as error:
        raise ConfigError(f"--port {text}: {error}") from None


async def _serve(where: Whereabouts, settings: Settings, ear: socket.socket, *, act: bool) -> None:
    from edl.dashboard.page_feed import Feed
    from edl.dashboard.page_server import PageServer, press
    from edl.dashboard.site import Access

    def find() -> Whereabouts:
        return locate(settings)

    heed_interrupts()
    feed = Feed(find)
    feeding = asyncio.create_task(feed.run())
    try:
        if not await feed.heard(LOOK_S):
            raise EdlError(f"job {where.job} is not heard of: `edl status {where.job}` says more")
        access = Access.fresh(ear.getsockname()[1], LOOPBACK)
        button = (lambda what: press(find, what)) if act else None
        tables.say(f"job {where.job}: {access.link}")
        sys.stdout.flush()
        await PageServer(feed, access, button).serve(ear)
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)


def report(arguments: argparse.Namespace) -> int:
    where, target = located(arguments), Path(arguments.html).expanduser()
    beside = (
        locate(msgspec.structs.replace(settings_for(arguments), job=arguments.beside)) if arguments.beside else None
    )
    if not target.parent.is_dir():
        raise ConfigError(f"--html {target}: there is no folder {target.parent}")
    text = asyncio.run(_page(where, beside))
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--html {target}: cannot be written: {error.strerror}") from None
    jobs = f"job {where.job}" if beside is None else f"jobs {where.job} and {beside.job}"
    tables.say(f"{jobs}: {target}, {len(text) // 1000} kB")
    return 0


async def _page(where: Whereabouts, beside: Whereabouts | None) -> str:
    """Render the page of a job that is over, or was started elsewhere and can be asked; or a comparison of two."""
    feed = await _read(where)
    if beside is None:
        return dashboard_report.report(feed)
    return comparison([compared(feed), compared(await _read(beside))])


async def _read(where: Whereabouts) -> Feed:
    feed = Feed(lambda: where)
    await feed.read_all()
    return feed


def compared(feed: Feed) -> ComparedRun:
    """Return a job as it is shown beside another one."""
    size = page_feed.charts(feed).size
    return ComparedRun(page_feed.view(feed), size["at"], size["size"], feed.history.points)


TOP_LOOK_S = 10.0  # for the first status of a job to arrive
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
        if not await feed.heard(TOP_LOOK_S):
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
