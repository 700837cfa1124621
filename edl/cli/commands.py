"""The commands about a running job: status, events, stop; and doctor. `edl scale` is in `scale`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import time
from typing import TYPE_CHECKING

import msgspec

from edl.cli import tables
from edl.config import Settings
from edl.errors import ConfigError, EdlError, TimedOut
from edl.launch import locate_job
from edl.launch.job_records import LaunchRecord, records
from edl.launch.locate_job import Whereabouts, kept_status, locate, read_status, story
from edl.protocol.record import OVER, JobState

if TYPE_CHECKING:
    from edl.scheduler.cluster_access import ReachedCluster

LONGEST_S = 7 * 86_400.0
LOOK_S = 0.25
PREEMPTED = 75  # exit code
STOP_REASON = "stopped by `edl stop`"


def status(arguments: argparse.Namespace) -> int:
    home = Settings.from_given(arguments.given, os.environ).home
    known = [record for _, record in records(home)]
    if arguments.job is None and "EDL_JOB" not in os.environ and sum(record.alive for record in known) != 1:
        return _list(known, arguments.json)
    if (cluster := cluster_with(arguments)) is not None:
        return _status_in(cluster, arguments)
    where = located(arguments)
    found = asyncio.run(read_status(where))
    if arguments.json:
        tables.say_json(found)
        return 0
    tables.show_status(found)
    record = where.folder.read() if where.folder is not None else None
    if record is not None and record.alive and record.warm_starts:
        tables.say(f"  warm starts {record.warm_starts}")
    return 0


def _status_in(cluster: ReachedCluster, arguments: argparse.Namespace) -> int:
    """Show the queue's entry to people, and to programs the fields that every job's status has."""
    from edl.cli.queue import show_job, status_of  # only where there is a cluster

    job = cluster.job(arguments.job)
    if not arguments.json:
        show_job(job)
        return 0
    found = status_of(job)
    with contextlib.suppress(EdlError):  # its leader cannot be asked
        if job.workers:
            found = asyncio.run(read_status(located(arguments)))
    tables.say_json(found)
    return 0


def located(arguments: argparse.Namespace) -> Whereabouts:
    """Locate the job named on the command line, else by EDL_JOB, else the only one that runs here."""
    return locate(settings_for(arguments))


def settings_for(arguments: argparse.Namespace) -> Settings:
    """Return the settings by which the job is found, also a job of this machine's cluster. Raises EdlError."""
    settings = Settings.from_given(arguments.given, os.environ)
    settings = msgspec.structs.replace(settings, job=arguments.job or settings.job)
    if settings.coordinator is None and (cluster := cluster_with(arguments)) is not None:
        return cluster.settings_for(settings)
    return settings


def cluster_with(arguments: argparse.Namespace) -> ReachedCluster | None:
    """Return the cluster that has the job; None if the job was started by `edl run`, or is unknown. Raises EdlError."""
    home = Settings.from_given(arguments.given, os.environ).home
    if arguments.job is None or not (getattr(arguments, "cluster", None) or (home / "cluster/cluster.json").exists()):
        return None
    from edl.cli.cluster_scale import cluster_of  # only where there is a cluster

    return cluster_of(arguments)


def _list(known: list[LaunchRecord], json: bool) -> int:
    if json:
        jobs = [{"job": record.job, "state": record.shown_state, "started": record.started} for record in known]
        tables.say_json({"jobs": jobs})
    else:
        tables.show_records(known)
    return 0


# -------------------------------------------------------------------------------------------------------- events


def events(arguments: argparse.Namespace) -> int:
    asyncio.run(_print_events(located(arguments), json=arguments.json, follow=arguments.follow))
    return 0


async def _print_events(where: Whereabouts, *, json: bool, follow: bool) -> None:
    async for event in story(where, follow=follow):
        if json:
            tables.say_json(event)
        else:
            sys.stdout.write(f"{tables.event_line(event)}\n")
        sys.stdout.flush()


# ---------------------------------------------------------------------------------------------------------- stop


def stop(arguments: argparse.Namespace) -> int:
    if (cluster := cluster_with(arguments)) is not None:
        from edl.cli.queue import cancel_in  # only where there is a cluster

        return cancel_in(cluster, arguments.job, wait=arguments.typed.prog == "edl stop")
    where = located(arguments)
    tables.say(f"job {where.job} {asyncio.run(locate_job.stop(where, STOP_REASON))}")
    return 0


# ---------------------------------------------------------------------------------------------------------- wait


def wait(arguments: argparse.Namespace) -> int:
    """Wait until the job is over; return its exit code. The job may be a cluster's or one of `edl run`."""
    timeout_s = seconds(arguments.timeout)
    if (cluster := cluster_with(arguments)) is not None:
        from edl.cli.queue import wait_in  # only where there is a cluster

        return wait_in(cluster, arguments.job, timeout_s)
    where, until = located(arguments), time.monotonic() + (timeout_s or LONGEST_S)
    while True:
        record = where.folder.read() if where.folder is not None else None
        found = kept_status(where) or asyncio.run(read_status(where))
        if found.state in OVER and not (record is not None and record.alive):  # its launcher judges how it ended
            break
        if time.monotonic() > until:
            raise TimedOut(f"job {where.job} is not over within {arguments.timeout} s: it is {found.state.value}")
        time.sleep(LOOK_S)
    if found.state is JobState.FINISHED:
        tables.say(f"job {where.job} has finished")
        return 0
    if found.state is JobState.PREEMPTED:
        tables.say(f"job {where.job} is preempted: {found.reason}")
        return PREEMPTED
    raise EdlError(f"job {where.job} {found.state.value}: {found.reason}")


# -------------------------------------------------------------------------------------------------------- doctor


def doctor(arguments: argparse.Namespace) -> int:
    from edl.launch.doctor import run as look  # only here: it looks at much that no other command needs

    return look(json=arguments.json)


def heed_interrupts() -> None:
    """Let Ctrl-C cancel the waiting, not the process, so that the command can report which request stays in force."""
    task = asyncio.current_task()
    if task is not None and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, task.cancel)


def seconds(text: str | None, flag: str = "--timeout", *, or_none: bool = False) -> float | None:
    """Parse the seconds of a flag; None if it was not given. `or_none`: 0 is allowed."""
    if text is None:
        return None
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= LONGEST_S or (found == 0 and not or_none):
        raise ConfigError(f"{flag} {text}: must be a number of seconds, {'0 or more' if or_none else 'more than 0'}")
    return found
