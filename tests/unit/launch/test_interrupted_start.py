"""A signal at any moment of a start: `edl run` ends all that it has begun, begins nothing more, and says so.

Real signals, processes and a real ZooKeeper, at a few of these moments: `tests/integration/test_run_local.py`.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edl.config import Settings
from edl.coordination.coordinator_settings import Coordinator
from edl.errors import JobFailed
from edl.launch import job_run, local_launch
from edl.launch.job_records import Folder, launch_record
from edl.launch.life_outcome import INTERRUPTED

WORKERS = 3
STEPS = 3  # of what takes a while: each leaves the loop to others


async def a_while() -> None:
    for _ in range(STEPS):
        await asyncio.sleep(0)


class Machine:
    """What a launch has begun on it. It is interrupted after so many turns of the event loop."""

    def __init__(self, turns: int) -> None:
        self.turns = turns
        self.interrupted = False
        self.coordinators = 0
        self.guards = 0
        self.alive: set[int] = set()
        self.started = 0
        self.left_behind: set[int] = set()  # workers that lived when their coordinator stopped

    @asynccontextmanager
    async def launched_coordinator(self, *_: object, say: object) -> AsyncIterator[Coordinator]:
        self.coordinators += 1
        try:
            for _step in range(STEPS):
                await asyncio.sleep(60 if self.interrupted else 0)  # nothing waits for a start that is not wanted
            yield Coordinator("127.0.0.1:1")
        finally:
            self.left_behind |= self.alive
            await a_while()
            self.coordinators -= 1

    def start_worker(self, slot: int, *_: object) -> Any:
        assert not self.interrupted, "a worker is started after the signal"
        assert self.coordinators, "a worker is started without a coordinator"
        self.alive.add(slot)
        self.started += 1
        told: list[Callable[[int, int], None]] = []

        def end(_signum: object) -> None:
            if slot in self.alive:
                self.alive.remove(slot)
                told[0](slot, -15)

        async def wait_printed(_timeout_s: float) -> None:
            await a_while()

        return SimpleNamespace(
            slot=slot, pid=1000 + slot, when_exited=told.append, signal=end, wait_printed=wait_printed
        )

    def end_marked(self, *_: object) -> list[int]:
        self.alive.clear()
        return []

    def guard(self, *_: object) -> Any:
        self.guards += 1

        def dismiss() -> None:
            self.guards -= 1

        return SimpleNamespace(dismiss=dismiss)

    async def run(self, settings: Settings) -> local_launch.Outcome:
        run = job_run.JobRun(settings, launch_record(settings, ["true"]))
        loop = asyncio.get_running_loop()

        def turn(number: int) -> None:
            if number == self.turns:
                self.interrupted = True
                run._signalled(signal.SIGINT)
            elif number < self.turns:
                loop.call_soon(turn, number + 1)

        turn(0)
        outcome = await run.run()
        assert (self.alive, self.left_behind, self.coordinators, self.guards) == (set(), set(), 0, 0), self.turns
        return outcome


class Client:
    """Of a job that no worker has joined yet."""

    def __init__(self, *_: object) -> None:
        pass

    async def __aenter__(self) -> Client:
        await a_while()
        return self

    async def __aexit__(self, *_: object) -> None:
        await a_while()

    async def status(self) -> Any:
        await a_while()
        raise JobFailed("there is no such job")


def test_whatever_was_begun_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("edl"), "handlers", [])  # each launch adds one
    started = []
    for turns in range(1000):
        machine = Machine(turns)
        for name in ("launched_coordinator", "end_marked"):
            monkeypatch.setattr(local_launch, name, getattr(machine, name))
        monkeypatch.setattr(local_launch, "start_process", lambda *_: None)
        monkeypatch.setattr(local_launch, "Worker", machine.start_worker)
        monkeypatch.setattr(job_run, "OrphanReaper", machine.guard)
        monkeypatch.setattr(local_launch, "JobClient", Client)
        settings = Settings(job=f"job-{turns}", home=tmp_path, np=WORKERS)
        outcome = asyncio.run(machine.run(settings))
        assert outcome.verdict == INTERRUPTED, turns
        record = Folder(settings.job_home).read()
        assert record is not None
        assert (record.state, record.reason, record.ended is not None) == ("failed", "interrupted", True)
        started.append(machine.started)
        if machine.started == WORKERS:  # it was over
            break
    assert started == sorted(started)
    assert {*started} == {*range(WORKERS + 1)}, "also between any two workers"
    assert len(started) > 4 * STEPS
