"""Whom a launch, and a worker's warden, finds by its mark, with real processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edl.launch.job_processes import MARK, is_marked, marked
from edl.scheduler.worker_wrapper import others

LOOKS = 100
SWITCHES_PROGRAMS = 'exec /bin/sh "$0"'  # one process that becomes the next program for ever
FORKS_AND_ENDS = 'sleep 0.01; /bin/sh "$0" &'  # always one process, never the same for long


@pytest.fixture
def start(tmp_path: Path) -> Iterator:
    started = []

    def start(script: str, mark: str) -> int:
        path = tmp_path / "script"
        path.write_text(script)
        process = subprocess.Popen(["/bin/sh", path], env={MARK: mark, "PATH": os.environ["PATH"]})
        started.append((process, mark, path))
        return process.pid

    yield start
    for process, mark, path in started:
        path.write_text("")  # a successor that reads it ends
        for pid in marked(mark):
            with contextlib.suppress(ProcessLookupError):  # it may end by itself just now
                os.kill(pid, signal.SIGKILL)
        process.wait()


def began(find: Callable[[str], list[int]], mark: str) -> None:
    """Its first program runs."""
    until = time.monotonic() + 30.0
    while not find(mark):
        assert time.monotonic() < until, "it never began"
        time.sleep(0.01)


@pytest.mark.parametrize("find", [marked, others])
class TestWhoIsAlwaysThere:
    """A look that is not repeated misses it now and then."""

    def test_while_it_changes_its_program(self, start, find: Callable[[str], list[int]]) -> None:
        pid = start(SWITCHES_PROGRAMS, "changing")
        began(find, "changing")
        assert [look for look in range(LOOKS) if pid not in find("changing")] == []

    def test_while_it_forks_and_ends(self, start, find: Callable[[str], list[int]]) -> None:
        start(FORKS_AND_ENDS, "forking")
        began(find, "forking")
        assert [look for look in range(LOOKS) if not find("forking")] == []


def test_one_without_any_environment_is_not_waited_for() -> None:
    process = subprocess.Popen(["/bin/sleep", "100"], env={})
    try:
        while Path(f"/proc/{process.pid}/comm").read_text() != "sleep\n":
            time.sleep(0.01)
        began = time.monotonic()
        assert not any(is_marked(process.pid, "none") for _ in range(100))
        assert time.monotonic() - began < 50  # a look that waited would take a second
    finally:
        process.kill()
        process.wait()
