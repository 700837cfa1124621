"""`edl dashboard`: serve a job's page until Ctrl-C, and print the link that opens it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Awaitable, Callable

import msgspec

from edl.cli import tables
from edl.cli.cluster_handle import home_of, is_remote, reached
from edl.cli.commands import heed_interrupts, settings_for
from edl.cluster.queue.job_view import JobShown
from edl.config import Settings
from edl.config.value_parsers import any_port
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
    from edl.dashboard.access import Access
    from edl.dashboard.cluster_feed import ClusterFeed, LooksHere
    from edl.dashboard.cluster_server import ClusterPageServer

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
    from edl.dashboard.access import Access
    from edl.dashboard.buttons import press
    from edl.dashboard.page_feed import Feed
    from edl.dashboard.page_server import PageServer

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
