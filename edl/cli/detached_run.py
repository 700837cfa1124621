"""`edl run --detach`: the launcher runs in the background, and the command returns once the job has begun.

Owns: the split into two processes, and the messages of the foreground one. Does not own: the job, which is the
launcher's.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

from edl.launch.job_records import Folder

LOOK_S = 0.05
HINTS = """edl: job {0} runs in the background
  edl status {0}             how far it is
  edl logs {0} --follow      what its workers print
  edl dashboard {0}          a page of it: prints the link
  edl stop {0}               ends it
"""


def in_background() -> tuple[int, int] | None:
    """Fork. In the parent, return the launcher's pid and the pipe with its messages; None in the launcher, which no
    terminal reaches any more.
    """
    heard, said = os.pipe()
    if pid := os.fork():
        os.close(said)
        return pid, heard
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor, end in enumerate((null, null, said)):
        os.dup2(end, descriptor)
    for descriptor in (heard, said, null):
        os.close(descriptor)
    return None


def wait_begun(launcher: int, heard: int, folder: Folder) -> int:
    """Wait until the job has a coordinator, or its launcher has ended. Return the exit code."""
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, lambda number, _: os.kill(launcher, number))
    pid = status = 0
    while not pid and not _has_begun(folder, launcher):
        time.sleep(LOOK_S)
        pid, status = os.waitpid(launcher, os.WNOHANG)
    os.set_blocking(heard, False)
    with contextlib.suppress(BlockingIOError):
        sys.stderr.write(os.read(heard, 1 << 16).decode(errors="replace"))
    if code := os.waitstatus_to_exitcode(status):
        return abs(code)
    sys.stderr.write(HINTS.format(folder.path.name))
    sys.stdout.write(f"{folder.path.name}\n")
    return 0


def _has_begun(folder: Folder, launcher: int) -> bool:
    record = folder.read()
    return record is not None and record.launcher_pid == launcher and bool(record.coordinator)
