"""The lock that a process holds for life, with real processes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edl.host.host_processes import hold_for_life, is_ending, watch_life

HOLDS = """
import os, signal, sys, threading
from pathlib import Path
from edl.host.host_processes import hold_for_life
hold_for_life(Path(sys.argv[1]))
print("held", flush=True)
if sys.argv[2] == "fork" and (child := os.fork()) == 0:
    os._exit(0)
if sys.argv[2] == "fork":
    os.waitpid(child, 0)
    print("forked", flush=True)
if sys.argv[2] == "exec":
    os.execv(sys.executable, [sys.executable, "-c", "import signal; print('anew', flush=True); signal.pause()"])
if sys.argv[2] != "end":
    signal.pause()
"""

Holder = Callable[[str], subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Holder]:
    started: list[subprocess.Popen[str]] = []

    def begin(then: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HOLDS, str(tmp_path / "life"), then]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert heard(process) == "held"
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


async def death_of(path: Path, process: subprocess.Popen[str], within_s: float = 20.0) -> bool:
    """Whether it is told, and of whom."""
    told: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    watch_life(path, process.pid, told.set_result)
    try:
        async with asyncio.timeout(within_s):
            return await told == process.pid
    except TimeoutError:
        return False


def test_a_death_is_told_by_the_lock(start, tmp_path):
    process = start("pause")

    async def kill() -> bool:
        asyncio.get_running_loop().call_later(0.2, process.kill)
        return await death_of(tmp_path / "life", process)

    assert asyncio.run(kill())
    assert is_ending(process.pid)


def test_it_is_told_also_where_it_was_before_somebody_asked(start, tmp_path):
    process = start("end")
    process.wait()
    assert asyncio.run(death_of(tmp_path / "life", process))


@pytest.mark.parametrize("then", ["fork", "exec"])
def test_neither_the_end_of_a_child_nor_another_program_is_a_death(start, tmp_path, then):
    process = start(then)
    assert heard(process) in {"forked", "anew"}
    assert not asyncio.run(death_of(tmp_path / "life", process, within_s=0.3))
    assert not is_ending(process.pid)


def test_without_a_lock_nothing_is_told(start, tmp_path):
    process = start("pause")
    assert not asyncio.run(death_of(tmp_path / "other", process, within_s=0.1))


def test_who_holds_it_goes_on(tmp_path):
    hold_for_life(tmp_path / "life")
    assert (tmp_path / "life").stat().st_size
