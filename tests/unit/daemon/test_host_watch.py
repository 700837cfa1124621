"""Daemons of one host look after each other: real processes, the coordinator in memory."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec
import pytest

from edl.coordination.election import Candidate
from edl.coordination.memory_store import MemoryServer
from edl.coordination.store import Store
from edl.daemon import host_watch
from edl.daemon.host_watch import HostProcesses, HostWatch, Process
from edl.errors import StoreUnavailable
from edl.host.host_processes import ExitWatch, watch_exit

ROOT = "/edl/digits"
FOLDER = f"{ROOT}/hosts/here"


class WatchedExits:
    """Which processes are looked after."""

    def __init__(self) -> None:
        self.pids: set[int] = set()

    def __call__(self, pid: int, *given: Any, **more: Any) -> ExitWatch:
        self.pids.add(pid)
        return watch_exit(pid, *given, **more)


class Host:
    """Our daemon, and workers beside it."""

    def __init__(self) -> None:
        self.server = MemoryServer()
        self.store = self.server.connect()
        self.watched = WatchedExits()
        self.listed: dict[str, HostProcesses] = {}
        self.told: list[tuple[str, ...]] = []
        self.siblings = HostWatch(self.store, ROOT, FOLDER, "w0", lambda: self.told.append(self.siblings.dead))
        self.started: list[subprocess.Popen[bytes]] = []

    def process(self) -> Process:
        self.started.append(one := subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE))
        process = Process.of(one.pid)
        assert process is not None
        return process

    def kill(self, process: Process) -> None:
        """A zombie is left, as its parent does not look."""
        os.kill(process.pid, 9)

    async def beside(self, worker: str, store: Store) -> HostProcesses:
        """A worker with two processes, on the list."""
        kin = HostProcesses(f"{worker} 127.0.0.1:1", self.process(), self.process())
        await self.list(worker, kin, store)
        return kin

    async def list(self, worker: str, kin: HostProcesses, store: Store) -> None:
        self.listed[worker] = kin
        await store.create(f"{FOLDER}/{worker}", msgspec.json.encode(kin), ephemeral=True)

    def pids(self, *workers: str) -> set[int]:
        kin = [self.listed[worker] for worker in workers]
        return {one.daemon.pid for one in kin} | {one.trainer.pid for one in kin}

    def close(self) -> None:
        for one in self.started:
            one.kill()
            one.communicate()


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    there = Host()
    monkeypatch.setattr(host_watch, "watch_exit", there.watched)
    yield there
    there.close()


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(5.0):
        while not await true():  # noqa: ASYNC110 - it is in the store, or in a process
            await asyncio.sleep(0.01)


async def followed(host: Host, *workers: str) -> None:
    async def are() -> bool:
        return host.pids(*workers) <= host.watched.pids

    await until(are)


async def test_a_worker_is_dead_once_neither_process_lives(host: Host) -> None:
    kin = await host.beside("w1", host.server.connect())
    host.siblings.start()
    await followed(host, "w1")
    host.kill(kin.daemon)
    await asyncio.sleep(0.1)
    assert host.told == []
    host.kill(kin.trainer)
    async with asyncio.timeout(5.0):
        while not host.told:  # noqa: ASYNC110 - a process ends
            await asyncio.sleep(0.01)
    assert host.told == [("w1",)]
    await host.siblings.stop()


async def test_a_trainer_that_is_about_to_go_is_not_waited_for(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was killed with its daemon, and its memory takes longer to be given back. It is told of once."""
    kin = await host.beside("w1", host.server.connect())
    monkeypatch.setattr(host_watch, "is_ending", lambda pid: pid == kin.trainer.pid)
    host.siblings.start()
    await followed(host, "w1")
    host.kill(kin.daemon)
    async with asyncio.timeout(5.0):
        while not host.told:  # noqa: ASYNC110 - a process ends
            await asyncio.sleep(0.01)
    host.kill(kin.trainer)
    await asyncio.sleep(0.1)
    assert host.told == [("w1",)]
    await host.siblings.stop()


async def test_a_daemon_that_died_and_was_started_anew_is_another_one(host: Host) -> None:
    """Its worker lives as long as the trainer does, and its old node gives way."""
    first, second = host.server.connect(), host.server.connect()
    kin = await host.beside("w1", first)
    host.siblings.start()
    await followed(host, "w1")
    host.kill(kin.daemon)
    await second.delete(f"{FOLDER}/w1")
    anew = HostProcesses(kin.candidate, host.process(), kin.trainer)
    await host.list("w1", anew, second)
    await followed(host, "w1")
    host.kill(kin.trainer)
    await asyncio.sleep(0.1)
    assert host.siblings.dead == ()
    await host.siblings.stop()


async def test_one_whose_session_has_ended_is_forgotten(host: Host) -> None:
    """The leader knows by then; a report is not to grow with every death of a long job."""
    theirs = host.server.connect()
    kin = await host.beside("w1", theirs)
    host.siblings.start()
    await followed(host, "w1")
    host.kill(kin.daemon)
    host.kill(kin.trainer)

    async def is_dead() -> bool:
        return host.siblings.dead == ("w1",)

    await until(is_dead)
    host.server.expire(theirs.session)

    async def is_forgotten() -> bool:
        return host.siblings.dead == ()

    await until(is_forgotten)
    assert host.told[-1] == ()
    await host.siblings.stop()


@pytest.mark.parametrize("which", ["daemon", "trainer"])
async def test_what_was_not_seen_alive_is_not_called_dead(host: Host, which: str) -> None:
    """Another process may have that pid; or the node is of a host that only looks like this one."""
    kin = HostProcesses("w1 127.0.0.1:1", host.process(), host.process())
    process: Process = getattr(kin, which)
    for other in (msgspec.structs.replace(process, started=process.started - 1), Process(2**22 + 1, 1)):
        strange = msgspec.structs.replace(kin, **{which: other})
        await host.store.create(f"{FOLDER}/w{other.pid}", msgspec.json.encode(strange), ephemeral=True)
    await host.beside("w3", host.store)
    host.siblings.start()
    await followed(host, "w3")
    assert host.watched.pids == host.pids("w3")
    await host.siblings.stop()


async def test_what_is_no_list_of_processes_is_passed_over(host: Host) -> None:
    await host.store.create(f"{FOLDER}/w1", b"{}", ephemeral=True)
    await host.store.create(f"{FOLDER}/w2", b"another version's", ephemeral=True)
    await host.beside("w3", host.store)
    host.siblings.start()
    await followed(host, "w3")
    await host.siblings.stop()


async def test_the_next_leader_comes_as_soon_as_the_daemon_of_the_last_is_dead(host: Host) -> None:
    """Its trainer lives, and its session does, for a while."""
    theirs = host.server.connect()
    kin = await host.beside("w1", theirs)
    theirs_leads, ours_leads = asyncio.Event(), asyncio.Event()
    leader = Candidate(theirs, ROOT, kin.candidate, lambda reign: theirs_leads.set() if reign else None)
    leader.stand()
    async with asyncio.timeout(5.0):
        await theirs_leads.wait()
    next_one = Candidate(host.store, ROOT, "w0 127.0.0.1:2", lambda reign: ours_leads.set() if reign else None)
    next_one.stand()
    host.siblings.start()
    await followed(host, "w1")
    host.server.suspend(theirs.session)  # its process is gone, and its session lives
    host.kill(kin.daemon)
    async with asyncio.timeout(5.0):
        await ours_leads.wait()
    assert host.siblings.dead == ()
    await host.siblings.stop()
    await next_one.resign()


async def test_a_question_that_was_not_answered_is_asked_again(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the connection stands, and no node changes after it."""
    await host.beside("w1", host.server.connect())
    children, asked = host.store.children, []

    async def answered_late(path: str) -> tuple[str, ...]:
        asked.append(path)
        if len(asked) == 1:
            raise StoreUnavailable("no answer in time")
        return await children(path)

    monkeypatch.setattr(host.store, "children", answered_late)
    host.siblings.start()
    await followed(host, "w1")
    await host.siblings.stop()


async def test_a_coordinator_that_is_away_is_asked_again(host: Host) -> None:
    kin = await host.beside("w1", host.server.connect())
    host.siblings.start()
    await followed(host, "w1")
    host.server.suspend(host.store.session)
    host.kill(kin.daemon)
    host.kill(kin.trainer)
    await host.beside("w2", host.server.connect())
    await asyncio.sleep(0.1)

    async def is_seen_dead() -> bool:
        return host.siblings.dead == ("w1",)

    await until(is_seen_dead)
    host.server.resume(host.store.session)
    await followed(host, "w1", "w2")
    await host.siblings.stop()
