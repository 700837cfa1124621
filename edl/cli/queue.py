"""`edl submit`, `queue`, `describe`, `cancel`, `wait`: jobs of a cluster, of this machine or another."""

from __future__ import annotations

import argparse
import asyncio
import getpass
import os
import random
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from edl.cli import tables
from edl.cli.cluster_scale import home_of, is_remote, reached
from edl.cli.command_arguments import TWINS
from edl.cli.commands import cluster_with, seconds, status
from edl.cluster.queue.job_view import FINISHED, JobList, JobShown
from edl.cluster.queue.queue_entries import NAME, JobPhase
from edl.cluster.queue.submission import USER, JobWish
from edl.config import Settings
from edl.errors import ConfigError, EdlError, UsageError
from edl.launch.job_records import invent
from edl.launch.locate_job import TIMEOUT_S
from edl.protocol.record import JobState, Status
from edl.scheduler.cluster_access import ReachedCluster
from edl.scheduler.environ_files import handed_on

SHOWN_OVER = 10  # most finished jobs in a list for people
COLOURS = {"running": "green", "scaling": "cyan", "finished": "bold", "failed": "red", "starting": "yellow"}


# ------------------------------------------------------------------------------------------------------------ submit


def submit(arguments: argparse.Namespace) -> int:
    settings, _ = home_of(arguments)
    wish = _wish(arguments, settings)
    reached(arguments).submit(wish)
    sys.stdout.write(f"{wish.name}\n")
    return 0


def _wish(arguments: argparse.Namespace, settings: Settings) -> JobWish:
    command = arguments.line[1:] if arguments.line[:1] == ["--"] else arguments.line
    if not command:
        raise UsageError("name the command to run: edl submit [flags] python train.py")
    name = arguments.name or invent(random.Random())  # noqa: S311 - a name, no secret
    if not re.fullmatch(NAME, name):
        raise ConfigError(f"--name {name}: must be 1 to 48 letters, digits, '.', '_' or '-'")
    priority = arguments.priority or "0"
    if not re.fullmatch(r"-?[0-9]{1,6}", priority):
        raise ConfigError(f"--priority {priority}: must be a whole number")
    remote = is_remote(arguments)
    np = max(settings.np, settings.min_workers)
    return JobWish(
        name=name,
        command=tuple(command),
        folder=_folder(arguments.folder),
        user=_user(arguments.user, remote=remote),
        np=np,
        min_np=settings.min_workers,
        max_np=settings.max_workers or np,
        batch_range=_range(arguments.batch_range),
        priority=int(priority),
        deadline_s=seconds(arguments.deadline, "--deadline"),
        checkpoint=settings.checkpoint,
        spread=arguments.spread,
        processes=settings.processes,
        environ={
            **_environ(os.environ, arguments.env, remote=remote),
            "EDL_WARM_STARTS": settings.warm_starts,
        },
    )


def _folder(given: str | None) -> str:
    if given is not None and not given.startswith("/"):
        raise ConfigError(f"--folder {given}: must be a whole path on the cluster's machine, such as /home/ann")
    return given or str(Path.cwd())


def _environ(environ: Mapping[str, str], given: list[str], *, remote: bool) -> dict[str, str]:
    """Return the environment of the job, with the variables named by --env."""
    # Another machine gets edl's own settings and the named variables: the others describe this machine.
    kept = {
        name: value for name, value in environ.items() if name not in TWINS and (not remote or name.startswith("EDL_"))
    }
    for text in given:
        name, named, value = text.partition("=")
        if not name or (not named and name not in environ):
            raise ConfigError(f"--env {text}: must be NAME=VALUE, or the name of a variable of this shell")
        kept[name] = value if named else environ[name]
    return handed_on(kept)


def _user(given: str | None, *, remote: bool) -> str | None:
    """Return the job's owner; None: the holder of the token."""
    user = given or getpass.getuser()
    if not re.fullmatch(USER, user):
        raise ConfigError(f"--user {user}: must be 1 to 64 letters, digits, '.', '_', '@' or '-'")
    return None if remote and given is None else user


def _range(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    matched = re.fullmatch(r"([1-9][0-9]{0,8}):([1-9][0-9]{0,8})", text)
    if matched is None or int(matched[1]) > int(matched[2]):
        raise ConfigError(f"--batch-range {text}: must be FEWEST:MOST samples a step, such as 64:512")
    return int(matched[1]), int(matched[2])


# ------------------------------------------------------------------------------------------------------------- queue


def queue(arguments: argparse.Namespace) -> int:
    jobs = reached(arguments).jobs()
    if arguments.json:
        tables.say_json(JobList(jobs))
        return 0
    over = [job for job in jobs if job.over]
    listed = [job for job in jobs if not job.over] + over[-SHOWN_OVER:]
    if not listed:
        tables.say("no jobs: `edl submit COMMAND...` submits one")
        return 0
    head = ("job", "user", "priority", "state", "workers", "wanted", "step", "waited", "reason")
    tables.table(head, [_row(job) for job in listed])
    return 0


def _row(job: JobShown) -> tuple[str, ...]:
    wanted = (
        f"{job.wanted or job.np}" if job.min_np == job.max_np else f"{job.wanted or job.np} ({job.min_np}-{job.max_np})"
    )
    return (
        job.name,
        job.user,
        str(job.priority),
        job.state,
        str(len(job.workers)),
        wanted,
        str(job.step),
        f"{job.waited_s:.0f} s",
        job.reason[:60],
    )


# ---------------------------------------------------------------------------------------------------------- describe


def describe(arguments: argparse.Namespace) -> int:
    if (cluster := cluster_with(arguments)) is None:
        return status(arguments)
    job = cluster.job(arguments.job)
    if arguments.json:
        tables.say_json(job)
    else:
        show_job(job)
    return 0


def status_of(job: JobShown) -> Status:
    """Return a cluster's job in the form of any job's status, if its own leader cannot tell: it waits, begins or is
    over.
    """
    states = {JobPhase.QUEUED: JobState.STARTING, JobPhase.CANCELLED: JobState.FAILED}
    phase = JobPhase(job.state)
    return Status(
        job=job.name,
        state=states.get(phase) or JobState(phase.value),
        reason=": ".join(filter(None, (phase.value, job.reason))) if phase in states else job.reason,
        term=0,
        generation=0,
        leader="",
        step=job.step,
        epoch=0,
        size=len(job.workers),
        target=job.wanted or job.np,
        min_workers=job.min_np,
        max_workers=job.max_np,
        workers=(),
        data=None,
        spec=None,
    )


def show_job(job: JobShown) -> None:
    why = f" ({job.reason})" if job.reason else ""
    asked = f", {job.wanted} asked for since" if job.wanted else ""
    tables.say(f"job {job.name}: {job.state}{why}", COLOURS.get(job.state, ""))
    tables.say(f"  command {' '.join(job.command)}   in {job.folder}")
    of = f" of {job.processes} processes" if job.processes > 1 else ""
    tables.say(
        f"  user {job.user}   priority {job.priority}   workers {job.np}, {job.min_np} to {job.max_np}{of}{asked}"
    )
    tables.say(
        f"  step {job.step}   lives {job.lives}   preempted {job.preemptions} times   tries left {job.tries_left}"
    )
    if job.cause is not None:
        retry = "another try may help" if job.cause.retry else "another try would not help"
        tables.say(f"  last failure: {job.cause.code} ({job.cause.domain.value}; {retry}): {job.cause.words}")
        if job.cause.root:
            tables.say(f"    {job.cause.root}")
    if job.used_s:
        used = ", ".join(f"{use} {held:.0f}" for use, held in job.used_s.items())
        tables.say(f"  device-seconds: {used}")
    for worker in job.workers:
        goes = "" if worker.wish == "run" else ": is to go"
        tables.say(f"  {worker.id} on {worker.node}, {worker.on}{goes}")
    for event in job.events:
        tables.say(f"{time.strftime('%H:%M:%S', time.localtime(event.ts))}  {event.kind:<16}  {event.words}")


# ------------------------------------------------------------------------------------------------------ cancel, wait


def cancel_in(cluster: ReachedCluster, name: str, *, wait: bool) -> int:
    job = cluster.cancel(name)
    if job.over:
        tables.say(f"job {name} is over already: {job.state}")
    elif not wait:
        tables.say(f"job {name} is to be cancelled")
    else:
        try:
            cluster.wait(name, TIMEOUT_S, lambda _: None)
        except (asyncio.CancelledError, KeyboardInterrupt):
            raise EdlError(f"interrupted; job {name} is to be cancelled") from None
        tables.say(f"job {name} has ended")
    return 0


def wait_in(cluster: ReachedCluster, name: str, timeout_s: float | None) -> int:
    progress = tables.Progress(sys.stderr)
    try:
        job = cluster.wait(name, timeout_s, lambda job: progress.show(_progress(job)))
    except (asyncio.CancelledError, KeyboardInterrupt):
        raise EdlError(f"interrupted; job {name} goes on") from None
    finally:
        progress.end()
    assert job.over
    if job.state == FINISHED:
        tables.say(f"job {job.name} has finished")
        return 0
    raise EdlError(f"job {job.name} {job.state}: {job.reason}")


def _progress(job: JobShown) -> str:
    return f"job {job.name}: {job.state}, {tables.counted(len(job.workers), 'worker')}" + (
        f" ({job.reason})" if job.reason else ""
    )
