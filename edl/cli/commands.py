"""The commands about a job that is there already: status, events, stop; and doctor. `edl scale` is in `scale`."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys

import msgspec

from edl.cli import show
from edl.config import Settings
from edl.errors import ConfigError
from edl.launch import stopping
from edl.launch.records import LaunchRecord, records
from edl.launch.story import story
from edl.launch.whereabouts import Whereabouts, locate, read_status

LONGEST_S = 7 * 86_400.0
STOP_REASON = "stopped by `edl stop`"


def status(arguments: argparse.Namespace) -> int:
    home = Settings.from_given(arguments.given, os.environ).home
    known = [record for _, record in records(home)]
    if arguments.job is None and "EDL_JOB" not in os.environ and sum(record.alive for record in known) != 1:
        return _list(known, arguments.json)
    found = asyncio.run(read_status(located(arguments)))
    if arguments.json:
        show.say_json(found)
    else:
        show.show_status(found)
    return 0


def located(arguments: argparse.Namespace) -> Whereabouts:
    """The job that was named on the command line, else by EDL_JOB, else the only one that runs here."""
    settings = Settings.from_given(arguments.given, os.environ)
    return locate(msgspec.structs.replace(settings, job=arguments.job or settings.job))


def _list(known: list[LaunchRecord], json: bool) -> int:
    if json:
        jobs = [{"job": record.job, "state": record.shown_state, "started": record.started} for record in known]
        show.say_json({"jobs": jobs})
    else:
        show.show_records(known)
    return 0


# -------------------------------------------------------------------------------------------------------- events


def events(arguments: argparse.Namespace) -> int:
    asyncio.run(_print_events(located(arguments), json=arguments.json, follow=arguments.follow))
    return 0


async def _print_events(where: Whereabouts, *, json: bool, follow: bool) -> None:
    async for event in story(where, follow=follow):
        if json:
            show.say_json(event)
        else:
            sys.stdout.write(f"{show.event_line(event)}\n")
        sys.stdout.flush()


# ---------------------------------------------------------------------------------------------------------- stop


def stop(arguments: argparse.Namespace) -> int:
    where = located(arguments)
    show.say(f"job {where.job} {asyncio.run(stopping.stop(where, STOP_REASON))}")
    return 0


# -------------------------------------------------------------------------------------------------------- doctor


def doctor(arguments: argparse.Namespace) -> int:
    from edl.launch.doctor import run as look  # only here: it looks at much that no other command needs

    return look(json=arguments.json)


def heed_interrupts() -> None:
    """Ctrl-C ends the waiting, not the process, so that it can be said what stands."""
    task = asyncio.current_task()
    if task is not None and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, task.cancel)


def seconds(text: str | None, flag: str = "--timeout", *, or_none: bool = False) -> float | None:
    """What the flag says; None: it was not given. `or_none`: it may be 0."""
    if text is None:
        return None
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= LONGEST_S or (found == 0 and not or_none):
        raise ConfigError(f"{flag} {text}: must be a number of seconds, {'0 or more' if or_none else 'more than 0'}")
    return found
