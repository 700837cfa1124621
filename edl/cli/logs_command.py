"""`edl logs`: print the output of a job's workers, as kept by `edl run` or, for a cluster's job, by their wardens.

Colours pass through to a terminal, but no other control sequence: a job may be another user's.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import time

from edl.cli.cluster_scale import home_of, is_remote, reached, runs_here
from edl.cli.commands import LOOK_S, cluster_with, located
from edl.cluster.queue.submission import WORKER, checked_name
from edl.control_characters import visible_beside_colours
from edl.errors import EdlError, UsageError
from edl.launch.job_processes import is_running
from edl.launch.job_records import LaunchRecord
from edl.launch.locate_job import Whereabouts
from edl.scheduler.cluster_access import ReachedCluster
from edl.scheduler.worker_logs import Printed, lacking


def logs(arguments: argparse.Namespace) -> int:
    job, worker = checked_name(arguments.job), arguments.worker
    if worker is not None and not re.fullmatch(WORKER, worker):
        raise UsageError(f"--worker {worker!r} is no worker's id: `edl status {job}` lists them")
    try:
        if (cluster := _cluster(arguments)) is not None:
            cluster.logs(job, worker, _write, follow=arguments.follow)
        else:
            _show_kept(located(arguments), worker, follow=arguments.follow)
    except (asyncio.CancelledError, KeyboardInterrupt):
        raise EdlError("interrupted") from None
    return 0


def lives(record: LaunchRecord) -> bool:
    return is_running(record.launcher_pid, record.launcher_start) if record.here else record.alive


def _cluster(arguments: argparse.Namespace) -> ReachedCluster | None:
    """Return the cluster that has the job. Kept output of its job on this machine can be read without a running
    cluster.
    """
    home = home_of(arguments)[1]
    if is_remote(arguments) or not home.job_logs(arguments.job).exists() or runs_here(home, arguments.job):
        return cluster_with(arguments)
    return reached(arguments)


def _show_kept(where: Whereabouts, number: str | None, *, follow: bool) -> None:
    """Print the output that `edl run` has kept here. `number`: only lines that begin with it."""
    if where.folder is None or where.record is None:
        raise UsageError(f"job {where.job} was not started here: its output is where `edl run` was typed")
    printed, final, numbers = Printed(where.folder.logs, where.folder.output.stem), False, set()
    while not final:  # the launcher writes its last line when the job is over
        final = not follow or not lives(where.record)
        for piece in printed.news(final=final):
            lines = piece.text.splitlines(keepends=True)
            numbers.update(re.findall(r"^\[(\d{1,9})\]<", piece.text, re.MULTILINE))
            _write("".join(line for line in lines if number is None or line.startswith(f"[{number}]<")))
        if not final:
            time.sleep(LOOK_S)
    if not printed.workers():
        raise UsageError(f"no output of job {where.job} is kept: {where.record.launcher} keeps none")
    if number is not None and number not in numbers:
        raise UsageError(lacking(where.job, number, sorted(numbers, key=int)))


def _write(text: str) -> None:
    sys.stdout.write(visible_beside_colours(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()
