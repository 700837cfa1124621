"""The processes of a cluster's worker as one: started together, and a bad end of one is that of all."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl.cluster.queue.queue_entries import Submission, WorkerOrder, WorkerWish
from edl.host.host_processes import holding_mark
from edl.scheduler.worker_engine import Start

TOLD = """
import os, signal, sys, time
from pathlib import Path
limb = os.environ["EDL_LIMB"]
out = Path(sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: ((out / f"left.{limb}").touch(), sys.exit(0)))
(out / limb).write_text(f"{os.getpid()} {os.environ['EDL_MEETING']}")
"""
WAIT = "time.sleep(60)"


class Limbs:
    """What a warden starts for a worker of two processes."""

    def __init__(self, folder: Path, then: str) -> None:
        self.folder = folder
        line = (sys.executable, "-c", TOLD + then, str(folder))
        start = Start(
            WorkerOrder("a-1", "a", 0, WorkerWish.RUN, further=(1,)),
            Submission("a", line, "/", "u", 0.0, processes=2),
            {},
        )
        environ = {**os.environ, "EDL_LAUNCH": str(folder)}
        self.process = subprocess.Popen(start.command, env=environ, start_new_session=True)

    def pids(self) -> list[int]:
        until = time.monotonic() + 60
        files = [self.folder / "0", self.folder / "1"]
        while not all(file.exists() and file.read_text() for file in files):
            assert time.monotonic() < until
            time.sleep(0.01)
        return [int(file.read_text().split()[0]) for file in files]


@pytest.fixture
def limbs(tmp_path: Path) -> Iterator[list[Limbs]]:
    begun: list[Limbs] = []
    yield begun
    for one in begun:
        one.process.kill()
        one.process.wait()


def lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_a_worker_of_one_process_is_its_command() -> None:
    asked = Submission("a", ("python", "t.py"), "/", "u", 0.0)
    assert Start(WorkerOrder("a-1", "a", 0, WorkerWish.RUN), asked, {}).command == ("python", "t.py")


def test_all_end_well_and_so_does_the_worker(limbs: list[Limbs], tmp_path: Path) -> None:
    limbs.append(one := Limbs(tmp_path, ""))
    assert one.process.wait(60) == 0
    assert {(tmp_path / name).read_text().split()[1] for name in "01"} == {str(tmp_path / "meeting")}


@pytest.mark.parametrize("limb", [0, 1])
def test_a_limb_that_is_killed_ends_the_worker_as_if_that_was_killed(
    limbs: list[Limbs], tmp_path: Path, limb: int
) -> None:
    limbs.append(one := Limbs(tmp_path, WAIT))
    pids = one.pids()
    os.kill(pids[limb], signal.SIGKILL)
    assert one.process.wait(60) == 128 + signal.SIGKILL
    assert not any(map(lives, pids))


def test_a_limb_that_fails_ends_the_worker_with_its_code(limbs: list[Limbs], tmp_path: Path) -> None:
    limbs.append(one := Limbs(tmp_path, f"limb == '1' and sys.exit(3)\n{WAIT}"))
    assert one.process.wait(60) == 3


def test_whoever_ends_well_first_is_waited_for(limbs: list[Limbs], tmp_path: Path) -> None:
    limbs.append(one := Limbs(tmp_path, "limb == '0' and sys.exit(0)\ntime.sleep(0.5)\nsys.exit(4)"))
    assert one.process.wait(60) == 4


def test_sigterm_reaches_all_limbs_and_the_worker_ends_as_they_do(limbs: list[Limbs], tmp_path: Path) -> None:
    limbs.append(one := Limbs(tmp_path, WAIT))
    one.pids()
    os.killpg(one.process.pid, signal.SIGTERM)  # as a warden does
    assert one.process.wait(60) == 0
    assert {path.name for path in tmp_path.glob("left.*")} == {"left.0", "left.1"}


def test_limbs_die_with_what_has_started_them(limbs: list[Limbs], tmp_path: Path) -> None:
    limbs.append(one := Limbs(tmp_path, WAIT))
    pids = one.pids()
    one.process.kill()
    one.process.wait()
    until = time.monotonic() + 60
    while any(map(lives, pids)):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_limbs_are_a_daemon_s_to_end_as_long_as_it_lives_and_holds_them(limbs: list[Limbs], tmp_path: Path) -> None:
    limbs.append(one := Limbs(tmp_path, WAIT))
    first, second = one.pids()
    os.kill(second, signal.SIGSTOP)
    with holding_mark(tmp_path / "meeting").open("w") as daemon:
        fcntl.flock(daemon, fcntl.LOCK_EX)
        os.kill(first, signal.SIGKILL)
        time.sleep(1)
        assert lives(second)
    assert one.process.wait(60) == 128 + signal.SIGKILL
    assert not lives(second)


def test_limbs_that_are_held_are_ended_where_the_worker_is_asked_to_end(limbs: list[Limbs], tmp_path: Path) -> None:
    limbs.append(one := Limbs(tmp_path, WAIT))
    first, second = one.pids()
    os.kill(second, signal.SIGSTOP)
    with holding_mark(tmp_path / "meeting").open("w") as daemon:
        fcntl.flock(daemon, fcntl.LOCK_EX)
        os.kill(first, signal.SIGKILL)
        os.kill(one.process.pid, signal.SIGTERM)
        assert one.process.wait(10) == 128 + signal.SIGKILL
    assert not lives(second)
