"""The cluster that a command speaks to, which of its jobs is meant, and `edl scale` for that job.

A command speaks to the cluster of EDL_HOME, or to one at another address. Owns: which jobs are a cluster's, and the
messages. Does not own: how the queue changes a size (`edl.cluster.queue`).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from edl.cli import tables
from edl.cli.commands import heed_interrupts
from edl.cluster.queue.job_view import JobShown
from edl.cluster.queue.queue_entries import JobPhase, WorkerWish
from edl.cluster.queue.submission import checked_name
from edl.config import Settings
from edl.errors import ConfigError, EdlError, NoSuchJob, StoreUnavailable, TimedOut, did_you_mean
from edl.launch.job_records import find, records
from edl.scheduler.cluster_access import ClusterHere, ReachedCluster
from edl.scheduler.cluster_client import PATIENCE_S
from edl.scheduler.cluster_home import OWN, ClusterHome

TOKEN = "token"  # noqa: S105 - name of a file below EDL_HOME


def home_of(arguments: argparse.Namespace) -> tuple[Settings, ClusterHome]:
    """Raises ConfigError."""
    settings = Settings.from_given(arguments.given, os.environ)
    home = ClusterHome(settings.home, os.environ.get(OWN) or None)
    if not is_remote(arguments):
        home.check()
    return settings, home


def is_remote(arguments: argparse.Namespace) -> bool:
    return bool(getattr(arguments, "cluster", None))


def reached(arguments: argparse.Namespace) -> ReachedCluster:
    """Raises ConfigError."""
    settings, home = home_of(arguments)
    if not is_remote(arguments):
        if getattr(arguments, "token_file", None) or getattr(arguments, "ca_file", None):
            raise ConfigError("--token-file and --ca-file go with --cluster URL")
        return ClusterHere(home, heed_interrupts)
    from edl.scheduler.remote_cluster import RemoteCluster  # only here: TLS and HTTP
    from edl.scheduler.tokens import read_token

    token = read_token(Path(arguments.token_file) if arguments.token_file else settings.home / TOKEN)
    return RemoteCluster(arguments.cluster, token, arguments.ca_file or None)


LOOK_S = 1.0


def cluster_of(arguments: argparse.Namespace) -> ReachedCluster | None:
    """Return the cluster that has the job; None if no cluster has it. Raises EdlError."""
    settings, home = home_of(arguments)
    remote, config, here = is_remote(arguments), home.read(), runs_here(home, arguments.job)
    if not remote and (config is None or here or settings.coordinator not in {None, config.coordinator}):
        return None
    # Where EDL_CLUSTER names a cluster elsewhere, jobs that were started here can still be asked.
    mine = here or (_by_variable(arguments) and find(home.home, arguments.job) is not None)
    cluster = reached(arguments)
    try:
        cluster.job(checked_name(arguments.job))
    except NoSuchJob:
        if remote and not mine:
            raise
        if mine or settings.coordinator is not None or find(home.home, arguments.job) is not None:
            return None
        known = [job.name for job in cluster.jobs()] + [record.job for _, record in records(home.home)]
        raise ConfigError(
            f"the cluster has no job {arguments.job}, and none of that name was started here"
            f"{did_you_mean(arguments.job, known) or ':'} `edl queue` and `edl status` list them"
        ) from None
    except EdlError:
        if (mine and _by_variable(arguments)) or (not remote and home.remains_of(arguments.job) is None):
            return None
        raise
    return cluster


def _by_variable(arguments: argparse.Namespace) -> bool:
    return is_remote(arguments) and arguments.cluster == os.environ.get("EDL_CLUSTER")


def runs_here(home: ClusterHome, job: str) -> bool:
    """Tell whether `edl run` runs the job on this machine."""
    folder = find(home.home, job)
    record = folder.read() if folder else None
    return record is not None and record.alive


def scale_in_cluster(cluster: ReachedCluster, name: str, size: int, *, timeout_s: float | None, wait: bool) -> int:
    asked = False
    progress = tables.Progress(sys.stderr)
    try:
        job = cluster.job(name)
        if not job.over and not job.min_np <= size <= job.max_np:
            many = tables.counted(size, "worker")
            raise EdlError(f"job {name} cannot have {many}: it was submitted for {job.min_np} to {job.max_np}")
        cluster.scale(name, size)
        asked = True
        if wait:
            _wait(cluster, name, size, timeout_s, lambda job: progress.show(far(job, size)))
    except (asyncio.CancelledError, KeyboardInterrupt):
        stands = f"; {tables.stays(size)}: `edl status {name}` shows how far it is" if asked else ""
        raise EdlError(f"interrupted{stands}") from None
    finally:
        progress.end()
    many = tables.counted(size, "worker")
    tables.say(f"job {name} has {many}" if wait else f"job {name}: {many} asked for")
    return 0


def _wait(
    cluster: ReachedCluster, name: str, size: int, timeout_s: float | None, seen: Callable[[JobShown], object]
) -> None:
    """Wait until the job has `size` workers. Raises EdlError if it never will, or another size was asked for
    meanwhile.
    """
    until = None if timeout_s is None else time.monotonic() + timeout_s
    taken = False  # the leading scheduler has taken the request
    while not has(job := _patiently(cluster, name), size):
        if job.over:
            raise EdlError(f"job {name} is over: {job.state}")
        taken |= job.wanted == size
        if taken and job.wanted != size:
            raise EdlError(f"job {name} was asked for {tables.counted(job.wanted or job.np, 'worker')} meanwhile")
        seen(job)
        if until is not None and time.monotonic() >= until:
            raise TimedOut(
                f"job {name} has {tables.counted(len(job.workers), 'worker')}, and not {size} within {timeout_s:g} s; "
                f"{tables.stays(size)}: `edl status {name}` shows how far it is"
            )
        time.sleep(LOOK_S if until is None else max(0.01, min(LOOK_S, until - time.monotonic())))


def _patiently(cluster: ReachedCluster, name: str) -> JobShown:
    """Read the job's entry; retry for as long as a coordinator takes to come back."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return cluster.job(name)
        except StoreUnavailable:
            if time.monotonic() > until:
                raise
            time.sleep(LOOK_S)


def has(job: JobShown, size: int) -> bool:
    """Tell whether `size` workers train, and no worker is starting or leaving."""
    return job.wanted == size == len(job.workers) == _staying(job) and job.state == JobPhase.RUNNING.value


def _staying(job: JobShown) -> int:
    return sum(worker.wish == WorkerWish.RUN.value for worker in job.workers)


def far(job: JobShown, size: int) -> str:
    """Describe how far the job is on its way to `size` workers."""
    here, leaving = _staying(job), len(job.workers) - _staying(job)
    parts = [f"{here} of {size} workers are there", job.state]
    if here < size:
        parts.append(f"{size - here} more {'has' if size - here == 1 else 'have'} no device yet")
    if leaving:
        parts.append(f"{leaving} {'leaves' if leaving == 1 else 'leave'}")
    return "; ".join(parts)
