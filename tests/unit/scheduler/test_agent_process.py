"""Whatever was submitted, and whatever is told of a worker's end, its agent goes on."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from edl.cluster.queue.agent_machine import WorkerFound
from edl.cluster.queue.end_causes import Domain, EndEvidence, classify
from edl.cluster.queue.queue_entries import NodeReport, Submission, WorkerOrder, WorkerWish
from edl.coordination.memory_store import MemoryServer
from edl.scheduler import agent_process as module
from edl.scheduler.agent_process import AgentProcess
from edl.scheduler.cluster_home import ClusterConfig, ClusterHome, NodeGiven, put
from edl.scheduler.environ_files import EnvironFiles
from edl.scheduler.queue_store import ORDERS, QueueStore
from edl.scheduler.worker_engine import Ended, Start

NODE = NodeGiven("n", (0, 1, 2))


class PlayedEngine:
    """Tells of each worker, or raises of it, what it was told to."""

    takes_workers = True

    def __init__(self, ended: Ended, does: dict[str, Exception | EndEvidence]) -> None:
        self.ended, self.does = ended, does
        self.begun: list[str] = []

    async def find(self) -> list[WorkerFound]:
        return []

    async def start(self, start: Start) -> int | None:
        self.begun.append(start.order.id)
        does = self.does.get(start.order.id)
        if isinstance(does, Exception):
            raise does
        if does is not None:
            self.ended(start.order.id, does)
        return 1

    async def bar(self, worker: str) -> WorkerFound:
        raise RuntimeError("of the test")

    def end(self, worker: str, *, kill: bool) -> None:
        raise RuntimeError("of the test")

    def forget(self, worker: str) -> None:
        raise RuntimeError("of the test")

    async def close(self) -> None: ...


class Played:
    """An agent of one node, which was told to run three workers."""

    def __init__(self, folder: Path, does: dict[str, Exception | EndEvidence]) -> None:
        self.home = ClusterHome(folder)
        self.home.make()
        put(self.home.secret, secrets.token_hex(32).encode())
        self.home.write(ClusterConfig((NODE,), "fifo", {}, {}, "127.0.0.1:1", True, 1, 10.0, time.time()))
        self.server, self.does = MemoryServer(), does
        self.queue = QueueStore(self.server.connect())
        self.engines: list[PlayedEngine] = []

    def make(self, ended: Ended) -> PlayedEngine:
        self.engines.append(PlayedEngine(ended, self.does))
        return self.engines[-1]

    async def order(self, *numbers: int) -> None:
        orders = [WorkerOrder(f"a-{number}", "a", number, WorkerWish.RUN) for number in numbers]
        if await self.queue.store.read(f"{ORDERS}/n") is None:
            await self.queue.store.create(f"{ORDERS}/n")
        await self.queue.store.write(f"{ORDERS}/n", msgspec.json.encode(orders))

    async def report(self, ends: int) -> NodeReport:
        """As soon as so many workers are told to be gone."""
        async with asyncio.timeout(20):
            while True:
                found = await self.queue.report("n")
                if found is not None and sum(one.gone for one in found.workers) == ends:
                    return found
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def played(folder: Path, does: dict[str, Exception | EndEvidence]) -> AsyncIterator[Played]:
    found = Played(folder, does)
    await found.queue.prepare()
    await QueueStore(found.queue.store, EnvironFiles(found.home.environs)).submit(
        Submission("a", ("train",), "/" + "a" * 20_000, "eve", 1.0), {}
    )
    await found.order(0, 1, 2)
    running = asyncio.create_task(AgentProcess(found.home, NODE, found.server.connect(), found.make).run())
    try:
        yield found
        assert not running.done(), running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_an_end_of_which_very_much_is_told_is_reported(tmp_path: Path) -> None:
    long = EndEvidence(refused="[Errno 36] File name too long: " + "a" * 390_000)
    async with played(tmp_path, {f"a-{number}": long for number in range(3)}) as found:
        report = await found.report(3)
        causes = [classify(one.evidence) for one in report.workers if one.evidence]
        assert [cause is not None and cause.root.startswith("[Errno 36] File name") for cause in causes] == [True] * 3


@pytest.mark.parametrize(
    ("error", "code"),
    [(ValueError("embedded null byte"), "no-command"), (OSError(24, "Too many open files"), "host-limits")],
)
async def test_a_worker_that_cannot_be_started_ends_no_agent(tmp_path: Path, error: Exception, code: str) -> None:
    async with played(tmp_path, {"a-1": error}) as found:
        report = await found.report(1)
        [seen] = [one for one in report.workers if one.gone]
        assert seen.evidence is not None
        cause = classify(seen.evidence)
        assert (seen.id, cause is not None and cause.code) == ("a-1", code)


async def test_a_worker_that_cannot_be_ended_keeps_no_other_from_its_start(tmp_path: Path) -> None:
    async with played(tmp_path, {}) as found:
        await found.report(0)
        await found.order(1, 2, 3)  # the first one is to be killed
        async with asyncio.timeout(20):
            while "a-3" not in found.engines[0].begun:  # noqa: ASYNC110 - the engine does not tell
                await asyncio.sleep(0.01)


async def test_a_fault_of_one_turn_ends_no_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.05)
    async with played(tmp_path, {"a-0": EndEvidence(code=0)}) as found:
        await found.report(1)
        await found.order(1, 2)  # the engine is to forget the first one, and fails
        async with asyncio.timeout(20):
            while len((await found.report(0)).workers) != 2:  # noqa: ASYNC110 - a report does not tell
                await asyncio.sleep(0.01)
    assert len(found.engines) == 1


async def test_a_job_whose_variables_are_lost_is_told_so(tmp_path: Path) -> None:
    async with played(tmp_path, {}) as found:
        await found.report(0)
        for name in EnvironFiles(found.home.environs).names():
            (found.home.environs / name).unlink()
        await found.order(0, 1, 2, 3)
        report = await found.report(1)
        [seen] = [one for one in report.workers if one.gone]
        assert seen.evidence is not None and "variables cannot be read" in seen.evidence.refused
        cause = classify(seen.evidence)
        assert cause is not None
        assert (cause.domain, cause.retry) == (Domain.WORKLOAD, False), "the machine is not to blame"
