"""A worker whose leader is dead: where its ring is broken the dead make way, else it waits for their sessions' end."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from msgspec.structs import replace

from edl.coordination.election import Candidate, Reign
from edl.coordination.memory_store import MemoryServer, MemoryStore
from edl.daemon import leader_session
from edl.daemon.leader_session import Candidacy, LeaderSession
from edl.daemon.trainer_view import TrainerView
from edl.protocol import leader_messages as say
from edl.protocol import node_paths
from edl.protocol.record import Identity
from edl.protocol.trainer_messages import TrainerStatus
from edl.transport.shared_page import SharedPage

JOB, SECRET = "j", b"s" * 32


class World:
    """Two candidates that are dead, though their sessions live, and one of a process that is there."""

    def __init__(self, folder: Path, dead: int, living: int) -> None:
        self.server = MemoryServer()
        self.store = self.server.connect()
        self.reigns: asyncio.Queue[Reign] = asyncio.Queue()
        SharedPage.create(folder / "page")
        self.observer = TrainerView(SharedPage.open(folder / "page"))
        about = Candidacy(JOB, SECRET, say.Register(Identity("w2", "h", "127.0.0.1", 1, 2), 3, 1, 0), 60.0)
        self.membership = LeaderSession(about, self.store, self.observer, lambda _: None)
        self._dead, self._living = dead, living
        self._stores: list[MemoryStore] = []

    async def elect(self) -> None:
        for worker, port in (("w0", self._dead), ("w1", self._dead), ("w3", self._living)):
            store = self.server.connect()
            self._stores.append(store)
            Candidate(store, node_paths.root(JOB), f"{worker} 127.0.0.1:{port}", self._on_reign).stand()
            async with asyncio.timeout(5.0):
                while len(await self.store.children(node_paths.candidates(JOB))) < len(self._stores):  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
        assert (await self.reigns.get()).term == 1
        for store in self._stores[:2]:
            self.server.suspend(store.session)

    def _on_reign(self, reign: Reign | None) -> None:
        if reign is not None:
            self.reigns.put_nowait(reign)

    def break_ring(self) -> None:
        self.observer.hear(TrainerStatus(phase=say.Phase.BROKEN, generation=1, reason="reset by peer"))


async def test_the_dead_make_way_once_the_ring_is_broken(tmp_path: Path) -> None:
    with socket.socket() as dead, socket.socket() as living:
        dead.bind(("127.0.0.1", 0))
        living.bind(("127.0.0.1", 0))
        living.listen()
        world = World(tmp_path, dead.getsockname()[1], living.getsockname()[1])
        await world.elect()
        belonging = asyncio.ensure_future(world.membership.run())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):  # while the ring trains, no leader is needed so soon
                await world.reigns.get()
        world.break_ring()
        async with asyncio.timeout(10.0):
            assert (await world.reigns.get()).term == 2
        assert len(await world.store.children(node_paths.candidates(JOB))) == 1
        belonging.cancel()
        await asyncio.gather(belonging, return_exceptions=True)


class Leader:
    """Hears reports, and has nothing to say to them."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[say.Observation] = asyncio.Queue()

    async def call(self, body: say.Request, *_: object, **__: object) -> say.Reply:
        if isinstance(body, say.Await):
            await asyncio.Event().wait()
        if isinstance(body, say.Report):
            self.heard.put_nowait(body.observation)
        return say.Done()

    async def close(self) -> None: ...

    async def newest(self) -> say.Observation:
        async with asyncio.timeout(10.0):
            return await self.heard.get()


@pytest.mark.parametrize("is_urged", [True, False])
async def test_what_is_calm_waits_for_what_is_not_but_not_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_urged: bool
) -> None:
    monkeypatch.setattr(leader_session, "FIRST_REPORT_S", 60.0)
    monkeypatch.setattr(leader_session, "CALM_S", 60.0 if is_urged else 0.05)
    world, leader = World(tmp_path, 1, 2), Leader()
    monkeypatch.setattr(leader_session, "Client", lambda *_: leader)
    await world.elect()
    reporting = asyncio.ensure_future(world.membership.run())
    training = TrainerStatus(phase=say.Phase.TRAINING, generation=1, began=0)
    world.observer.hear(training)
    assert (await leader.newest()).generation == 1
    training = replace(training, generation=2, began=5)
    world.membership.stir(calm=world.observer.hear(training))
    for _ in range(5):
        await asyncio.sleep(0)
    assert leader.heard.empty()
    if is_urged:
        world.membership.stir(calm=world.observer.hear(replace(training, leaving=True)))
    newest = await leader.newest()
    assert (newest.generation, newest.leaving) == (2, is_urged)
    reporting.cancel()
    await asyncio.gather(reporting, return_exceptions=True)
