"""Facts of processes, with real ones."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl.errors import ConfigError
from edl.host.host_processes import process_start_time, spawn_daemon, watch_exit

FOREVER = [sys.executable, "-c", "import signal, sys; print('up', flush=True); signal.pause()"]

DIES_WITH_PARENT = """
import os, signal, sys
from edl.host.host_processes import die_with_parent
die_with_parent(int(sys.argv[1]))
print(os.getpid(), flush=True)
signal.pause()
"""
STARTS_A_CHILD = f"""
import os, subprocess, sys
subprocess.Popen([sys.executable, "-c", {DIES_WITH_PARENT!r}, str(os.getpid())]).wait()
"""
LOOKS_AROUND = """
import os, sys
print("out", os.getsid(0) != int(sys.argv[1]))
print("err", file=sys.stderr)
print(len(os.listdir("/proc/self/fd")), sys.stdin.read() == "")
"""
STARTS_A_DAEMON = f"""
import os, sys
from edl.host.host_processes import spawn_daemon
print(spawn_daemon({FOREVER!r}, os.environ, sys.argv[1]))
"""


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(FOREVER, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def wait_gone(pid: int) -> None:
    """Until the process is gone for good, reaped by the one that must."""
    deadline = time.monotonic() + 10
    while process_start_time(pid) is not None and not _is_zombie(pid):
        assert time.monotonic() < deadline, f"{pid} lives on"
        os.sched_yield()


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


# ------------------------------------------------------------------------------------------------------ start time


def test_the_start_time_stays_and_tells_processes_apart(child: subprocess.Popen[bytes]) -> None:
    ours = process_start_time(os.getpid())
    assert ours is not None
    assert ours == process_start_time(os.getpid())
    theirs = process_start_time(child.pid)
    assert theirs is not None
    assert theirs >= ours


def test_a_process_that_is_gone_has_no_start_time(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    assert process_start_time(child.pid) is None


# ------------------------------------------------------------------------------------------------------------ exit


async def test_an_exit_is_told_at_once(child: subprocess.Popen[bytes]) -> None:
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    watch_exit(child.pid, ended.set_result)
    child.kill()
    assert await asyncio.wait_for(ended, 5) == child.pid


async def test_one_that_has_ended_already_is_told_soon(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    watch_exit(child.pid, ended.set_result)
    assert not ended.done()
    assert await asyncio.wait_for(ended, 5) == child.pid


async def test_a_successor_under_the_same_pid_is_not_the_one_meant(child: subprocess.Popen[bytes]) -> None:
    started = process_start_time(child.pid)
    assert started is not None
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    watch_exit(child.pid, ended.set_result, started=started - 1)
    assert await asyncio.wait_for(ended, 5) == child.pid
    calls: list[int] = []
    right = watch_exit(child.pid, calls.append, started=started)
    await asyncio.sleep(0)
    assert calls == []
    right.cancel()


async def test_a_cancelled_watch_says_nothing(child: subprocess.Popen[bytes]) -> None:
    calls: list[int] = []
    watch = watch_exit(child.pid, calls.append)
    watch.cancel()
    watch.cancel()
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    watch_exit(child.pid, ended.set_result)
    child.kill()
    await asyncio.wait_for(ended, 5)
    assert calls == []


# -------------------------------------------------------------------------------------------------- with the parent


def test_a_child_dies_with_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", STARTS_A_CHILD], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        grandchild = int(process.stdout.readline())
        process.kill()
    wait_gone(grandchild)


def test_one_whose_parent_is_gone_already_dies_at_once() -> None:
    program = "from edl.host.host_processes import die_with_parent; die_with_parent(1 << 30); print('alive')"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert result.returncode == -signal.SIGTERM
    assert result.stdout == b""


# ---------------------------------------------------------------------------------------------------------- daemons


def test_a_daemon_is_detached_and_writes_its_log(tmp_path: Path) -> None:
    with (tmp_path / "open").open("w"):  # must not be inherited
        pid = spawn_daemon(
            [sys.executable, "-u", "-c", LOOKS_AROUND, str(os.getsid(0))],
            {**os.environ, "EDL": "1"},
            tmp_path / "log",
        )
    wait_gone(pid)
    assert sorted((tmp_path / "log").read_text().splitlines()) == ["4 True", "err", "out True"]
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_a_daemon_is_not_our_child(tmp_path: Path) -> None:
    pid = spawn_daemon(FOREVER, os.environ, tmp_path / "log")
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    os.kill(pid, signal.SIGKILL)
    wait_gone(pid)


def test_a_daemon_outlives_the_process_that_started_it(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", STARTS_A_DAEMON, str(tmp_path / "log")],
        capture_output=True,
        check=True,
        start_new_session=True,
    )
    pid = int(result.stdout)
    assert process_start_time(pid) is not None
    os.kill(pid, signal.SIGKILL)
    wait_gone(pid)


def test_the_log_is_continued(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("before\n")
    wait_gone(spawn_daemon(["/bin/echo", "after it's done"], os.environ, tmp_path / "log"))
    assert (tmp_path / "log").read_text() == "before\nafter it's done\n"


def test_a_program_that_is_not_there_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no-such-program"):
        spawn_daemon(["no-such-program"], os.environ, tmp_path / "log")


# -------------------------------------------------------------------------------------------------------- open files


def test_the_limit_of_open_files_goes_up_as_far_as_it_may() -> None:
    program = (
        "import resource; from edl.host.host_processes import raise_open_files\n"
        "_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))\n"
        "assert raise_open_files() == raise_open_files() == hard, hard\n"
        "assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
