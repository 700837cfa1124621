"""`edl hosts`: print the size that a job wants as `host:slots` lines, which horovodrun reads each second."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from edl.config import Given, Settings
from edl.control_characters import one_line
from edl.errors import ConfigError
from edl.host.job_discovery import completed
from edl.launch import host_slots
from edl.launch.host_slots import Host, LastLook, Wanted
from edl.launch.job_records import Folder


def show_hosts(arguments: argparse.Namespace) -> int:
    given = {**arguments.given, "job": Given(arguments.job, arguments.job)}
    settings = Settings.from_given(given, os.environ)
    allowed = checked_hosts(arguments.hosts)
    np_given = "np" in given or any(os.environ.get(name) for name in ("EDL_NP", "EDL_NUM_PROC"))
    wanted = host_slots.wanted(settings, again=np_given)
    for host in host_slots.spread(wanted.size, allowed or (Host("localhost", wanted.size),)):
        sys.stdout.write(f"{host}\n")
    sys.stdout.flush()
    _warn(settings, wanted, warning(arguments.job, wanted, allowed))
    return 0


def checked_hosts(text: str | None) -> tuple[Host, ...]:
    """Return the hosts given; () for this host, with as many slots as the job wants. Raises ConfigError."""
    quote = f"--hosts {text}"
    if text is None:
        text = os.environ.get("EDL_HOSTS", "")
        quote = f"EDL_HOSTS={text}"
        if not text:
            return ()
    try:
        return host_slots.parse_hosts(text)
    except ValueError as error:
        raise ConfigError(f"{quote}: {error}") from None


def warning(job: str, wanted: Wanted, allowed: Sequence[Host]) -> str:
    """Return a warning about the job or its hosts; "" if there is none."""
    if wanted.doubt:
        return f"job {job} cannot be asked how many workers it wants, {wanted.size} it is: {wanted.doubt}"
    slots = sum(host.slots for host in allowed)
    if allowed and wanted.size > slots:
        return f"job {job} wants {wanted.size} workers, and its hosts have slots for {slots}: add hosts or slots"
    return ""


def _warn(settings: Settings, wanted: Wanted, text: str) -> None:
    """Print a warning once, unless stderr is a terminal: horovodrun runs this command each second."""
    coordinator = completed(settings).coordinator or ""
    before = host_slots.remembered(Folder(settings.job_home), coordinator)
    if text and (text != before.said or sys.stderr.isatty()):
        sys.stderr.write(f"edl: {one_line(text)}\n")
    size = before.size if wanted.doubt else wanted.size
    host_slots.remember(settings, before, LastLook(coordinator, size, text))
