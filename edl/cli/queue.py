"""`edl submit`, `queue`, `describe`, `cancel`, `wait`: jobs of a cluster."""

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

import msgspec

from edl.cli import show
from edl.cli.cluster import home_of
from edl.cli.commands import heed_interrupts, seconds
from edl.cluster.queue.entries import NAME, JobEntry, Submission
from edl.cluster.queue.phases import TERMINAL, JobPhase
from edl.config import TABLE, Settings
from edl.errors import ConfigError, EdlError, UsageError
from edl.launch.names import invent
from edl.scheduler.client import opened
from edl.scheduler.places import ClusterHome

SHOWN_OVER = 10  # jobs that are over, in a list for people
# Settings that are the cluster's to give to each life of a job, whatever this shell has, or the worker that this is.
OF_THE_LIFE = frozenset(
    ("job", "secret_file", "np", "min_workers", "max_workers", "resume_from", "life", "batch_size", "stand_in",
     "driver_slot")
)  # fmt: skip
KEPT_OUT = frozenset(("EDL_HOME", "EDL_WORKER_ID", "EDL_LAUNCH", "EDL_SLOT")) | {
    name for setting in TABLE if setting.field in OF_THE_LIFE for name in setting.variables
}
OF_SUBMIT = ("EDL_NAME", "EDL_USER", "EDL_PRIORITY", "EDL_DEADLINE", "EDL_BATCH_RANGE", "EDL_JSON", "EDL_SPREAD")
COLOURS = {"running": "green", "scaling": "cyan", "finished": "bold", "failed": "red", "starting": "yellow"}


# ------------------------------------------------------------------------------------------------------------ submit


def submit(arguments: argparse.Namespace) -> int:
    settings, home = home_of(arguments)
    asked = _asked(arguments, settings)
    asyncio.run(_submit(home, asked))
    sys.stdout.write(f"{asked.name}\n")
    return 0


async def _submit(home: ClusterHome, asked: Submission) -> None:
    environ = handed_on(os.environ)
    async with opened(home) as client:
        devices = sum(len(node.devices) for node in client.config.nodes)
        if asked.min_np > devices:
            raise ConfigError(f"--min-np {asked.min_np}: the cluster has {devices} devices: it would never begin")
        await client.submit(asked, environ)


def handed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """What a job gets of its owner's variables. Raises ConfigError."""
    left_out = KEPT_OUT | set(OF_SUBMIT)
    handed = {}
    for name, value in environ.items():
        if name in left_out or name.startswith("EDL_COORDINATOR"):
            continue
        try:
            (name + value).encode()
        except UnicodeEncodeError:
            raise ConfigError(f"the variable {ascii(name)[1:-1]} is not UTF-8: unset it") from None
        handed[name] = value
    return handed


def _asked(arguments: argparse.Namespace, settings: Settings) -> Submission:
    command = arguments.line[1:] if arguments.line[:1] == ["--"] else arguments.line
    if not command:
        raise UsageError("name the command to run: edl submit [flags] python train.py")
    name = arguments.name or invent(random.Random())  # noqa: S311 - a name, no secret
    if not re.fullmatch(NAME, name):
        raise ConfigError(f"--name {name}: must be 1 to 48 letters, digits, '.', '_' or '-'")
    priority = arguments.priority or "0"
    if not re.fullmatch(r"-?[0-9]{1,6}", priority):
        raise ConfigError(f"--priority {priority}: must be a whole number")
    due_s = seconds(arguments.deadline, "--deadline")
    now = time.time()
    np = max(settings.np, settings.min_workers)
    return Submission(
        name=name,
        command=tuple(command),
        folder=str(Path.cwd()),
        user=_user(arguments.user),
        submitted=now,
        np=np,
        min_np=settings.min_workers,
        max_np=settings.max_workers or np,
        batch_range=_range(arguments.batch_range),
        priority=int(priority),
        deadline=None if due_s is None else now + due_s,
        checkpoint=settings.checkpoint,
        spread=arguments.spread,
    )


def _user(given: str | None) -> str:
    user = given or getpass.getuser()
    if not re.fullmatch(r"[A-Za-z0-9._@-]{1,64}", user):
        raise ConfigError(f"--user {user}: must be 1 to 64 letters, digits, '.', '_', '@' or '-'")
    return user


def _range(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    matched = re.fullmatch(r"([1-9][0-9]{0,8}):([1-9][0-9]{0,8})", text)
    if matched is None or int(matched[1]) > int(matched[2]):
        raise ConfigError(f"--batch-range {text}: must be FEWEST:MOST samples a step, such as 64:512")
    return int(matched[1]), int(matched[2])


# ------------------------------------------------------------------------------------------------------------- queue


def queue(arguments: argparse.Namespace) -> int:
    _, home = home_of(arguments)
    jobs = asyncio.run(_jobs(home))
    if arguments.json:
        sys.stdout.buffer.write(msgspec.json.encode({"jobs": [flat(job) for job in jobs]}) + b"\n")
        return 0
    over = [job for job in jobs if job.over]
    shown = [job for job in jobs if not job.over] + over[-SHOWN_OVER:]
    if not shown:
        show.say("no jobs: `edl submit COMMAND...` submits one")
        return 0
    head = ("job", "user", "priority", "state", "workers", "wanted", "step", "waited", "reason")
    show.table(head, [_row(job) for job in shown])
    return 0


async def _jobs(home: ClusterHome) -> list[JobEntry]:
    async with opened(home) as client:
        return await client.queue.jobs()


def _row(job: JobEntry) -> tuple[str, ...]:
    asked = job.asked
    wanted = f"{asked.np}" if asked.min_np == asked.max_np else f"{asked.np} ({asked.min_np}-{asked.max_np})"
    waited = job.waited + (time.time() - job.since if job.waits else 0.0)
    return (
        job.name,
        asked.user,
        str(asked.priority),
        job.phase.value,
        str(len(job.workers)),
        wanted,
        str(job.step),
        f"{waited:.0f} s",
        job.reason[:60],
    )


def flat(job: JobEntry) -> dict[str, object]:
    """As `edl queue --json` and `edl describe --json` show it."""
    asked = job.asked
    cause = job.cause
    return {
        "name": job.name,
        "state": job.phase.value,
        "reason": job.reason,
        "cause": None if cause is None else msgspec.to_builtins(cause),
        "user": asked.user,
        "priority": asked.priority,
        "np": asked.np,
        "min_np": asked.min_np,
        "max_np": asked.max_np,
        "batch_range": asked.batch_range,
        "deadline": asked.deadline,
        "command": asked.command,
        "folder": asked.folder,
        "checkpoint": asked.checkpoint,
        "submitted": asked.submitted,
        "began": job.began,
        "ended": job.ended,
        "step": job.step,
        "lives": job.life,
        "preemptions": job.preemptions,
        "changes": job.changes,
        "batch": job.batch,
        "tries_left": job.tries_left,
        "workers": [
            {"id": one.id, "node": one.node, "device": one.device, "wish": one.wish.value} for one in job.workers
        ],
        "used_s": job.used,
        "events": [msgspec.to_builtins(event) for event in job.story],
    }


# ---------------------------------------------------------------------------------------------------------- describe


def describe(arguments: argparse.Namespace) -> int:
    _, home = home_of(arguments)
    job = asyncio.run(_job(home, arguments.job))
    if arguments.json:
        sys.stdout.buffer.write(msgspec.json.encode(flat(job)) + b"\n")
        return 0
    asked = job.asked
    why = f" ({job.reason})" if job.reason else ""
    show.say(f"job {job.name}: {job.phase.value}{why}", COLOURS.get(job.phase, ""))
    show.say(f"  command {' '.join(asked.command)}   in {asked.folder}")
    show.say(f"  user {asked.user}   priority {asked.priority}   workers {asked.np}, {asked.min_np} to {asked.max_np}")
    show.say(f"  step {job.step}   lives {job.life}   preempted {job.preemptions} times   tries left {job.tries_left}")
    if job.cause is not None:
        retry = "another try may help" if job.cause.retry else "another try would not help"
        show.say(f"  last failure: {job.cause.code} ({job.cause.domain.value}; {retry}): {job.cause.words}")
        if job.cause.root:
            show.say(f"    {job.cause.root}")
    if job.used:
        used = ", ".join(f"{use} {held:.0f}" for use, held in job.used.items())
        show.say(f"  device-seconds: {used}")
    for worker in job.workers:
        goes = "" if worker.wish == "run" else ": is to go"
        show.say(f"  {worker.id} on {worker.node}, device {worker.device}{goes}")
    for event in job.story:
        show.say(f"{time.strftime('%H:%M:%S', time.localtime(event.ts))}  {event.kind:<16}  {event.words}")
    if not job.over:
        config = home.config()
        show.say("to look at it as at any job of edl, `edl status` and `edl events`:")
        show.say(f"  EDL_COORDINATOR={config.coordinator} EDL_SECRET_FILE={home.secret} edl status {job.name}")
    return 0


async def _job(home: ClusterHome, name: str) -> JobEntry:
    async with opened(home) as client:
        return await client.job(checked(name))


def checked(name: str) -> str:
    """Raises ConfigError."""
    if not re.fullmatch(NAME, name):
        raise ConfigError(f"{name!r} is no name of a job: 1 to 48 letters, digits, '.', '_' or '-'")
    return name


# ------------------------------------------------------------------------------------------------------ cancel, wait


def cancel(arguments: argparse.Namespace) -> int:
    _, home = home_of(arguments)
    show.say(asyncio.run(_cancel(home, checked(arguments.job))))
    return 0


async def _cancel(home: ClusterHome, name: str) -> str:
    async with opened(home) as client:
        job = await client.job(name)
        if job.over:
            return f"job {name} is over already: {job.phase.value}"
        await client.queue.cancel(name)
    return f"job {name} is to be cancelled"


def wait(arguments: argparse.Namespace) -> int:
    _, home = home_of(arguments)
    progress = show.Progress(sys.stderr)
    try:
        job = asyncio.run(_wait(home, checked(arguments.job), seconds(arguments.timeout), progress))
    except asyncio.CancelledError:
        raise EdlError(f"interrupted; job {arguments.job} goes on") from None
    finally:
        progress.end()
    assert job.phase in TERMINAL
    if job.phase is JobPhase.FINISHED:
        show.say(f"job {job.name} has finished")
        return 0
    raise EdlError(f"job {job.name} {job.phase.value}: {job.reason}")


async def _wait(home: ClusterHome, name: str, timeout_s: float | None, progress: show.Progress) -> JobEntry:
    heed_interrupts()
    async with opened(home) as client:
        return await client.wait(name, timeout_s, lambda job: progress.show(_progress(job)))


def _progress(job: JobEntry) -> str:
    return f"job {job.name}: {job.phase.value}, {len(job.workers)} workers" + (f" ({job.reason})" if job.reason else "")
