"""A scheduler's calls and real leaders on the twins of ZooKeeper and of the network: answers get lost, leaders go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from edl.clock import SystemClock
from edl.coordination.coordinator_settings import Coordinator
from edl.coordination.election import Candidate, Reign, read_leader
from edl.coordination.memory_store import MemoryServer
from edl.daemon.leader_shell import Leader, LeaderConfig
from edl.errors import ConfigError, JobFailed, NoSuchJob, PeerError, ScaleRejected, TimedOut
from edl.events import Event, Kind
from edl.outside import job_client
from edl.outside.job_client import JobClient, Retry, when_back
from edl.protocol import leader_messages as say
from edl.protocol import node_paths
from edl.protocol.leader_messages import Ack, Observation, Phase
from edl.protocol.record import Identity, JobState
from edl.transport.call_errors import Reason, Refusals, Refused
from edl.transport.memory_transport import Fate, MemoryNetwork, Parcel
from edl.transport.service import Call

JOB, SECRET = "j", b"a secret of the job's"
SIZE = 2, 1, 4  # np, minimum, maximum


class Daemon:
    """What of a worker's daemon leads: it stands for election, and answers while it reigns."""

    def __init__(self, world: World, worker: str) -> None:
        self.worker = worker
        self.store = world.zookeeper.connect()
        self.refusals = Refusals()
        self.server = world.network.server(SECRET, JOB, self._answer, request_types=say.Request, refusals=self.refusals)
        self._leader: Leader | None = None
        self._reigning: asyncio.Task[None] | None = None
        self._candidate: Candidate | None = None

    async def start(self) -> None:
        await self.store.create(node_paths.worker(JOB, self.worker), ephemeral=True)
        port = await self.server.start("127.0.0.1")
        ident = f"{self.worker} 127.0.0.1:{port}"
        self._candidate = Candidate(self.store, node_paths.root(JOB), ident, self._on_reign)
        self.stand()

    def stand(self) -> None:
        assert self._candidate is not None
        self._candidate.stand()

    async def resign(self) -> None:
        if self._candidate is not None:
            await self._candidate.resign()
        if self._reigning is not None:
            self._reigning.cancel()
            await asyncio.gather(self._reigning, return_exceptions=True)

    async def stop(self) -> None:
        await self.resign()
        await self.server.stop()
        await self.store.close()

    def _on_reign(self, reign: Reign | None) -> None:
        if reign is None:
            self.server.term, self._leader = 0, None
            return
        about = LeaderConfig(JOB, self.worker, "127.0.0.1", 10.0)
        self._leader = Leader(about, self.store, reign, SystemClock(), self.refusals)
        self._reigning = asyncio.ensure_future(self._leader.run())
        self.server.term = reign.term

    async def _answer(self, call: Call) -> say.Reply:
        if self._leader is None:
            raise Refused(Reason.TERM)
        return await self._leader.answer(call)


class World:
    """One job of two workers that train."""

    def __init__(self) -> None:
        self.zookeeper = MemoryServer()
        self.network = MemoryNetwork()
        self.daemons: list[Daemon] = []
        self.store = self.zookeeper.connect()

    async def start(self, *workers: str) -> None:
        for worker in workers:
            self.daemons.append(daemon := Daemon(self, worker))
            await daemon.start()

    async def say(self, worker: str, body: say.Request) -> say.Reply:
        """As this worker's daemon."""
        leader = await self.leader()
        caller = self.network.client(SECRET, JOB, worker, leader.ident.rpartition(" ")[2])
        return await caller.call(body, say.Reply, term=leader.term, deadline_s=2.0)

    async def leader(self):
        while True:
            leader = await read_leader(self.store, node_paths.root(JOB))
            if leader is not None and any(daemon.server.term == leader.term for daemon in self.daemons):
                return leader
            await asyncio.sleep(0.01)

    async def join(self, worker: str) -> None:
        await self.say(worker, say.Register(Identity(worker, "h", "127.0.0.1", 1, 2), *SIZE))

    async def see(self, worker: str, phase: Phase, generation: int, step: int = 0, met: int = 0) -> None:
        seen = Observation(
            phase=phase, generation=generation, step=step, leases_of=generation, step_time_s=0.01, met=(met,)
        )
        await self.say(worker, say.Report(seen))

    async def train(self) -> None:
        await self.start("w0", "w1")
        for worker in ("w0", "w1"):
            await self.join(worker)
        for worker in ("w0", "w1"):
            await self.see(worker, Phase.TRAINING, 1)

    def client(self) -> JobClient:
        async def connect(_: Coordinator, __: float):
            return self.zookeeper.connect()

        return JobClient(Coordinator("memory:1"), JOB, SECRET, connect=connect, speak=self.network.client)

    def lose_answers(self, number: int) -> asyncio.Event:
        """Of the next calls of clients: they are carried out, and their callers do not hear of it. Set once so many
        were.
        """
        left, lost = [number], asyncio.Event()

        def fate(parcel: Parcel) -> Fate:
            if parcel.sender == "client" and parcel.reply and left[0]:
                left[0] -= 1
                if not left[0]:
                    lost.set()
                return Fate.DROP
            return Fate.DELIVER

        self.network.fate = fate
        return lost


@asynccontextmanager
async def running() -> AsyncIterator[tuple[World, JobClient]]:
    world = World()
    await world.train()
    try:
        async with world.client() as job:
            yield world, job
    finally:
        world.network.fate = None
        for daemon in world.daemons:
            await daemon.stop()


async def test_an_acknowledged_request_is_on_record() -> None:
    async with running() as (_, job):
        assert await job.scale_out(1) == Ack(3)
        status = await job.status()
        assert (status.size, status.target) == (2, 3)
        _, events = await job.events()
        assert events[-1].kind is Kind.SCALE_ASKED


async def test_a_second_relative_request_is_to_be_asked_again() -> None:
    async with running() as (_, job):
        await job.scale_out(1)
        answer = await job.scale_in(1)
        assert isinstance(answer, Retry)
        assert answer.reason.startswith("2 of the 3 workers asked for are here")
        assert await job.scale(2) == Ack(2)  # a size is taken at any time
        assert await job.scale_in(1) == Ack(1)


async def test_what_can_never_be_is_raised_with_the_remedy() -> None:
    async with running() as (_, job):
        with pytest.raises(ScaleRejected, match="at most 4 workers, so not 7: ask for 1 to 4"):
            await job.scale_out(5)
        with pytest.raises(ScaleRejected, match="at least 1 workers, so not 0"):
            await job.scale_in(("w0", "w1"))
        with pytest.raises(ScaleRejected, match="no worker w7 trains in this job"):
            await job.scale_in(("w7",))


async def test_a_request_whose_answer_was_lost_counts_once() -> None:
    """The scheduler hears RETRY, asks the same again, and the job grows by one and not by two."""
    async with running() as (world, job):
        lost = world.lose_answers(1)
        answer = await job.scale_out(1, timeout_s=1.0)
        assert isinstance(answer, Retry)
        assert lost.is_set()
        assert "ask the same again" in answer.reason
        assert await job.scale_out(1) == Ack(3)
        assert (await job.status()).target == 3


async def test_a_request_with_an_id_counts_once_for_any_client() -> None:
    async with running() as (world, job):
        assert await job.scale_out(1, "operation 17") == Ack(3)
        async with world.client() as other:
            assert await other.scale_out(1, "operation 17") == Ack(3)


async def test_a_request_survives_the_leader_that_took_it() -> None:
    """It dies before it can say so; the next one knows."""
    async with running() as (world, job):
        lost = world.lose_answers(1)
        first = await world.leader()
        assert isinstance(await job.scale_out(2, timeout_s=1.0), Retry)
        assert lost.is_set()
        await next(daemon for daemon in world.daemons if daemon.worker == first.ident.partition(" ")[0]).stop()
        assert await job.scale_out(2) == Ack(4)
        record = await job.status()
        assert (record.target, record.term) == (4, first.term + 1)


async def test_without_a_leader_it_is_to_be_asked_again_and_a_size_is_insisted_on() -> None:
    async with running() as (world, job):
        for daemon in world.daemons:
            await daemon.resign()
        assert isinstance(await job.scale_out(1, timeout_s=0.1), Retry)
        with pytest.raises(PeerError, match=r"no leader of job j answered within 0.1 s"):
            await job.scale(3, timeout_s=0.1)
        asking = asyncio.ensure_future(job.scale(3))
        world.daemons[1].stand()
        assert await asking == Ack(3)


async def test_a_job_that_is_over_or_was_never_there_is_said_to_be() -> None:
    async with running() as (world, job):
        await job.stop("enough")
        with pytest.raises(ScaleRejected, match="the job is over: enough"):
            await job.scale_out(1)
        for daemon in world.daemons:
            await daemon.stop()
        with pytest.raises(JobFailed, match="job j is over: enough"):
            await job.scale(3)
        with pytest.raises(JobFailed, match=r"job j is over \(failed\): it never had 3 workers"):
            await job.wait(3, timeout_s=1.0)
    async with World().client() as job:
        with pytest.raises(NoSuchJob, match="there is no job j"):
            await job.scale_out(1, timeout_s=0.1)


async def test_waiting_shows_each_look_and_ends_with_the_size_or_the_time() -> None:
    async with running() as (world, job):
        seen = []
        assert (await job.wait(2, None, seen.append)).size == 2
        await job.scale_out(1)
        with pytest.raises(TimedOut, match="has 2 workers, and not 3 within 0 s"):
            await job.wait(None, 0.0, seen.append)
        assert [(status.size, status.target) for status in seen] == [(2, 2), (2, 3)]
        await world.start("w2")
        await world.join("w2")
        await world.see("w2", Phase.READY, 0)
        for worker in ("w0", "w1"):
            await world.see(worker, Phase.TRAINING, 1, met=1)
        await world.see("w2", Phase.READY, 0, met=1)
        step = (await job.events())[1][-1].details["after_step"]
        for worker in ("w0", "w1", "w2"):
            await world.see(worker, Phase.TRAINING, 2, step)
        status = await job.wait(None, 5.0)
        assert (status.size, status.state) == (3, JobState.RUNNING)


async def test_following_ends_with_the_job() -> None:
    async with running() as (_, job):
        kinds = []

        async def follow() -> None:
            kinds.extend([event.kind async for event in job.follow()])

        following = asyncio.ensure_future(follow())
        await job.scale(3)
        await job.stop("enough")
        async with asyncio.timeout(5.0):
            await following
        assert kinds[-2:] == [Kind.SCALE_ASKED, Kind.JOB_FAILED]


async def test_the_last_event_is_told_also_where_the_job_ends_between_two_looks() -> None:
    async with running() as (_, job):
        events = job.events

        async def before_its_end(after: int = 0) -> tuple[int, list[Event]]:
            job.events = events  # type: ignore[method-assign]
            found = await events(after)
            await job.stop("enough")
            return found

        job.events = before_its_end  # type: ignore[method-assign]
        kinds = [event.kind async for event in job.follow()]
        assert kinds[-1] is Kind.JOB_FAILED
        assert kinds.count(Kind.JOB_FAILED) == 1


async def test_events_come_in_their_order_however_many_are_asked_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as (_, job):
        for size in (3, 4, 3, 4):
            await job.scale(size)
        count, whole = await job.events()
        assert count == len(whole) > 5
        monkeypatch.setattr(job_client, "AT_ONCE", 2)
        assert await job.events() == (count, whole)
        assert await job.events(count - 3) == (count, whole[-3:])
        assert await job.events(count) == (count, [])


def away_at_first(world: World, tries: int) -> JobClient:
    left = [tries]

    async def connect(_: Coordinator, __: float):
        if left[0]:
            left[0] -= 1
            raise ConfigError(f"no daemon is there, {left[0]} more times")
        return world.zookeeper.connect()

    return JobClient(Coordinator("memory:1"), JOB, SECRET, connect=connect, speak=world.network.client)


async def test_a_coordinator_that_is_away_is_waited_for() -> None:
    async with running() as (world, _):
        heard: list[str] = []
        async with when_back(away_at_first(world, 2), 30.0, heard.append) as job:
            assert await job.scale(3) == Ack(3)
        assert heard == ["no daemon is there, 1 more times", "no daemon is there, 0 more times"]


async def test_a_coordinator_that_stays_away_is_waited_for_so_long() -> None:
    heard: list[str] = []
    with pytest.raises(ConfigError, match="no daemon is there"):
        async with when_back(away_at_first(World(), 1), 0.0, heard.append):
            pass
    assert heard == []
