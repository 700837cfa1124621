"""Who has no session is lost; but not just after the coordinator stood still, which ends the sessions of all."""

from __future__ import annotations

import asyncio
import time

import pytest

from edl.clock import SystemClock
from edl.coordination.election import Candidate, Reign
from edl.coordination.memory_store import MemoryServer
from edl.daemon.leader_shell import Leader, LeaderConfig
from edl.protocol import leader_messages as say
from edl.protocol import node_paths
from edl.protocol.record import Identity
from edl.transport.call_errors import Refusals
from edl.transport.service import Call

JOB, SESSION_S = "j", 0.5


class Reigned:
    """A leader of two workers, of which w1 has no session."""

    def __init__(self, restored_at: float) -> None:
        self._restored_at = restored_at
        self._server = MemoryServer()
        self.store = self._server.connect()

    async def __aenter__(self) -> Reigned:
        self._began: asyncio.Future[Reign] = asyncio.get_running_loop().create_future()
        self._candidate = Candidate(self.store, node_paths.root(JOB), "w0 127.0.0.1:1", self._on_reign)
        await self.store.create(node_paths.worker(JOB, "w0"), b"", ephemeral=True)
        self._candidate.stand()
        about = LeaderConfig(JOB, "w0", "127.0.0.1", SESSION_S)
        reign = await self._began
        self._leader = Leader(about, self.store, reign, SystemClock(), Refusals(), lambda: self._restored_at)
        self._reigning = asyncio.ensure_future(self._leader.run())
        for worker in ("w0", "w1"):
            register = say.Register(Identity(worker, "h", "127.0.0.1", 1, 2), 2, 1, 0)
            await self._leader.answer(Call(worker, 1, register))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reigning.cancel()
        await asyncio.gather(self._reigning, return_exceptions=True)
        await self._candidate.resign()
        await self.store.close()

    def _on_reign(self, reign: Reign | None) -> None:
        if reign is not None and not self._began.done():
            self._began.set_result(reign)

    async def members(self) -> set[str]:
        told = await self._leader.answer(Call("w0", 1, say.AskStatus()))
        assert isinstance(told, say.Told)
        return {worker.id for worker in told.status.workers}

    async def change_the_roll(self) -> None:
        """A worker comes that the job does not know: the leader looks which ones are there."""
        await self.store.create(node_paths.worker(JOB, "stranger"), b"", ephemeral=True)

    async def hear_w1(self) -> None:
        """Its daemon asks for orders."""
        await self._leader.answer(Call("w1", 1, say.Await(0, 0, 0.0)))

    def remembers(self, worker: str) -> bool:
        return worker in self._leader._heard

    async def lose_w1(self) -> None:
        while "w1" in await self.members():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("ago_s", [float("inf"), 2 * SESSION_S])
async def test_who_has_no_session_is_lost_at_once(ago_s: float) -> None:
    async with Reigned(time.monotonic() - ago_s) as reigned:
        await reigned.change_the_roll()
        async with asyncio.timeout(SESSION_S):
            await reigned.lose_w1()


async def test_after_the_coordinator_was_away_all_have_a_session_timeout_to_come_back() -> None:
    restored = time.monotonic()
    async with Reigned(restored) as reigned:
        await reigned.change_the_roll()
        await reigned.lose_w1()
        assert time.monotonic() - restored >= SESSION_S


async def test_who_comes_back_in_time_is_not_lost() -> None:
    restored = time.monotonic()
    async with Reigned(restored) as reigned:
        await reigned.change_the_roll()
        await reigned.store.create(node_paths.worker(JOB, "w1"), b"", ephemeral=True)
        await asyncio.sleep(restored + 1.5 * SESSION_S - time.monotonic())
        assert await reigned.members() == {"w0", "w1"}


async def test_who_goes_on_talking_is_not_lost_though_its_session_ended() -> None:
    """The coordinator stood still, so shortly that our own session lives."""
    async with Reigned(float("-inf")) as reigned:
        await reigned.hear_w1()
        await reigned.change_the_roll()
        until = time.monotonic() + 2 * SESSION_S
        while time.monotonic() < until:
            await reigned.hear_w1()
            assert await reigned.members() == {"w0", "w1"}
            await asyncio.sleep(SESSION_S / 10)
        async with asyncio.timeout(SESSION_S):
            await reigned.lose_w1()  # once it is silent


async def test_who_is_lost_is_forgotten() -> None:
    """A job of weeks has thousands of workers, a few at a time."""
    async with Reigned(float("-inf")) as reigned:
        await reigned.hear_w1()
        assert reigned.remembers("w1")
        await reigned.change_the_roll()
        await reigned.lose_w1()
        assert not reigned.remembers("w1")
