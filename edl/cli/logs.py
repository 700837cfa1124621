"""`edl logs`: what the workers of a job have printed, as their wardens have kept it.

A terminal is shown colours, and no other sequence that would control it: a job may be another user's.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys

from edl.cli.reached import reached
from edl.cluster.queue.wanted import WORKER, checked_name
from edl.control_characters import visible_beside_colours
from edl.errors import EdlError, UsageError


def logs(arguments: argparse.Namespace) -> int:
    job = checked_name(arguments.job)
    if arguments.worker is not None and not re.fullmatch(WORKER, arguments.worker):
        raise UsageError(f"--worker {arguments.worker!r} is no worker's id: `edl describe {job}` lists them")
    try:
        reached(arguments).logs(job, arguments.worker, _write, follow=arguments.follow)
    except (asyncio.CancelledError, KeyboardInterrupt):
        raise EdlError("interrupted") from None
    return 0


def _write(text: str) -> None:
    sys.stdout.write(visible_beside_colours(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()
