"""A reign: what follows from an act that comes to nothing."""

from __future__ import annotations

import asyncio
import errno
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from edl.cluster.queue.phases import JobPhase
from edl.cluster.queue.queue_entries import JobEntry, NodeReport, QueueEvent, Submission
from edl.cluster.queue.scheduler_inputs import (
    BeginLife,
    JobLook,
    JobLooked,
    LifeReady,
    LifeRefused,
    LookOnce,
    NodeLeftOut,
    NodeReported,
    SendAway,
)
from edl.coordination.coordinator_settings import Coordinator
from edl.coordination.election import Reign
from edl.coordination.memory_store import MemoryServer
from edl.coordination.store import Store
from edl.core.job.leader_machine import new_record
from edl.errors import CheckpointError, Fenced, PeerError
from edl.outside.job_client import JobClient
from edl.protocol import node_paths, record_codec
from edl.protocol.leader_messages import AskPreempt
from edl.protocol.record import JobState
from edl.scheduler import job_poller as observer_module
from edl.scheduler import queue_store, scheduler_loop
from edl.scheduler.cluster_home import ClusterHome
from edl.scheduler.job_poller import JobsObserver
from edl.scheduler.queue_store import AGENTS, DRAIN, JOBS, REPORTS, SIZES, STORY, WISHES, QueueStore
from edl.scheduler.scheduler_loop import QueueReign


class Machine:
    """Of one job."""

    def __init__(self) -> None:
        self.jobs = {"a": JobEntry(Submission("a", ("train",), "/", "ann", 1.0), life=2)}


class FailingObserver:
    """Of no use."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def look(self, _: str) -> JobLook:
        raise self.error

    async def begin_life(self, _: JobEntry) -> None:
        raise self.error


@pytest.mark.parametrize("error", [RuntimeError("no"), PeerError("no")])
async def test_an_act_that_comes_to_nothing_is_answered_for(error: Exception) -> None:
    observer = cast("JobsObserver", FailingObserver(error))
    queue = QueueStore(MemoryServer().connect())
    reign = QueueReign(queue, cast("Reign", None), observer, cast("Any", None))
    reign._machine = cast("Any", Machine())
    await reign._act(BeginLife("a", 2))
    await reign._act(LookOnce("a", 2))
    reason = f"{type(error).__name__}: no"
    assert reign._inbox == [LifeRefused("a", 2, reason, again=True), JobLooked("a", 2, JobLook(), final=True)]


@pytest.mark.parametrize(
    ("cause", "passes"),
    [(OSError(errno.EIO, "Input/output error"), True), (OSError(errno.ENOSPC, "No space left"), True),
     (ValueError("the store's own"), True), (PermissionError(errno.EACCES, "Permission denied"), False),
     (OSError(errno.EROFS, "Read-only file system"), False), (None, False)],
)  # fmt: skip
async def test_a_storage_that_fails_may_do_better_and_a_checkpoint_that_is_wrong_may_not(
    monkeypatch: pytest.MonkeyPatch, cause: Exception | None, *, passes: bool
) -> None:
    def fails(*_: object) -> None:
        raise CheckpointError("no") from cause

    monkeypatch.setattr(observer_module, "to_go_on_from", fails)
    job = JobEntry(Submission("a", ("train",), "/", "ann", 1.0, checkpoint="/c"), life=2)
    store = MemoryServer().connect()
    observer = JobsObserver(cast("Any", None), cast("Any", None), b"", store)
    assert await observer.begin_life(job) == LifeRefused("a", 2, "no", again=passes)


async def _begun(store: Store, home: ClusterHome, made: int = 0, life: int = 1) -> LifeReady | LifeRefused:
    job = JobEntry(Submission("a", ("train",), "/", "ann", 1.0), life=life, made=made)
    return await JobsObserver(home, cast("Any", None), b"", store).begin_life(job)


async def test_a_living_job_of_another_keeps_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a coordinator that is not the cluster's own."""
    monkeypatch.setattr(observer_module, "LOOK_AGAIN_S", 0.01)
    server, home = MemoryServer(), ClusterHome(tmp_path)
    home.make()
    theirs, ours = server.connect(), server.connect()
    await theirs.create(node_paths.record("a"), record_codec.encode(new_record("a", 1.0)))
    await theirs.create(f"{node_paths.workers('a')}/w1", ephemeral=True)
    refused = await _begun(ours, home)
    assert isinstance(refused, LifeRefused)
    assert "another job a lives in this coordinator, as by `edl run`: w1" in refused.reason
    assert await theirs.read(node_paths.record("a")) is not None
    server.expire(theirs.session)

    async def sleep(seconds: float) -> None:
        """Its sessions have ended with the coordinator's, and are back after a moment."""
        if seconds == 0.01:
            await theirs.create(f"{node_paths.workers('a')}/w1", ephemeral=True)
        await sleep_before(0)

    sleep_before = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", sleep)
    assert isinstance(await _begun(ours, home), LifeRefused)
    monkeypatch.setattr(asyncio, "sleep", sleep_before)
    server.expire(theirs.session)
    assert isinstance(await _begun(ours, home), LifeReady)
    assert await theirs.read(node_paths.record("a")) is None


async def test_sessions_of_the_life_before_do_not_hold_up_the_next(tmp_path: Path) -> None:
    server, home = MemoryServer(), ClusterHome(tmp_path)
    home.make()
    before = server.connect()
    await before.create(node_paths.record("a"), record_codec.encode(new_record("a", 1.0)))
    await before.create(f"{node_paths.workers('a')}/a-1", ephemeral=True)
    assert isinstance(await _begun(server.connect(), home, made=2, life=2), LifeReady)


async def test_a_scheduler_that_leads_no_more_removes_nothing(tmp_path: Path) -> None:
    """It was paused, and the job has a life since that it does not know of."""
    server, home = MemoryServer(), ClusterHome(tmp_path)
    home.make()
    store = server.connect()
    await store.create(node_paths.record("a"), record_codec.encode(new_record("a", 1.0)))
    job = JobEntry(Submission("a", ("train",), "/", "ann", 1.0), life=2, made=2)
    with pytest.raises(Fenced):
        await JobsObserver(home, cast("Any", None), b"", store, fence="/fence").begin_life(job)
    assert await store.read(node_paths.record("a")) is not None


async def test_now_and_then_everything_is_read_again_also_while_jobs_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_loop, "ALL_EVERY_S", 0.02)
    monkeypatch.setattr(scheduler_loop, "JOBS_EVERY_S", 0.01)
    reign = QueueReign(QueueStore(MemoryServer().connect()), cast("Reign", None), cast("Any", None), cast("Any", None))
    machine = Machine()
    machine.jobs["a"] = msgspec.structs.replace(machine.jobs["a"], ready=True, phase=JobPhase.RUNNING)
    reign._machine, reign._there, reign._looking = cast("Any", machine), {"n"}, {"a"}
    async with asyncio.timeout(10):
        while not reign._dirty:
            await reign._rest()
    assert reign._dirty == {JOBS, WISHES, SIZES, AGENTS, DRAIN, f"{REPORTS}/n"}


async def test_a_reign_begins_with_the_nodes_that_the_one_before_has_left_out() -> None:
    queue = QueueStore(MemoryServer().connect())
    await queue.prepare()
    await queue.tell(NodeReport("n", (0,)))
    until = time.time() + 60
    told = [
        QueueEvent(1.0, "node_left_out", "", "long ago", {"node": "n", "until": 2.0}),
        QueueEvent(3.0, "node_left_out", "", "again", {"node": "n", "until": until}),
        QueueEvent(1.0, "node_left_out", "", "long ago", {"node": "m", "until": 2.0}),
    ]
    await queue.store.create(STORY, msgspec.json.encode(told))
    leads = cast("Reign", SimpleNamespace(term=1, fence="f"))
    reign = QueueReign(queue, leads, cast("Any", None), lambda _: cast("Any", SimpleNamespace(jobs={})))
    await reign._load()
    assert reign._inbox == [NodeReported(NodeReport("n", (0,))), NodeLeftOut("n", until)]


@pytest.mark.parametrize(
    ("state", "alone", "stays"),
    [(JobState.FINISHED, False, False), (JobState.RUNNING, False, True), (JobState.RUNNING, True, False)],
)
async def test_a_job_that_is_forgotten_leaves_nothing_in_the_coordinator(
    monkeypatch: pytest.MonkeyPatch, state: JobState, *, alone: bool, stays: bool
) -> None:
    """One that was killed could not say that it is over; where others use the coordinator, it may be one of theirs."""
    monkeypatch.setattr(queue_store, "KEPT_OVER", 0)
    store = MemoryServer().connect()
    queue = QueueStore(store)
    await queue.prepare()
    await store.create("/fence")
    await queue.submit(Submission("a", ("train",), "/", "ann", 1.0), {})
    record = msgspec.structs.replace(new_record("a", 1.0), state=state)
    await store.create(node_paths.record("a"), record_codec.encode(record))
    forgotten: list[str] = []
    jobs = {job.name: msgspec.structs.replace(job, phase=JobPhase.FINISHED) for job in await queue.jobs()}
    observer = JobsObserver(cast("Any", None), cast("Any", None), b"", store, "/fence", alone=alone)
    reign = QueueReign(queue, cast("Reign", SimpleNamespace(fence="/fence")), observer, cast("Any", None))
    reign._machine = cast("Any", SimpleNamespace(jobs=jobs, forget=forgotten.append))
    await reign._forget_old()
    assert (await queue.names(), forgotten) == ((), ["a"])
    assert (await store.read(node_paths.record("a")) is not None) is stays


async def test_a_job_is_asked_to_go_in_the_life_that_was_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its leader refuses the request of who was paused meanwhile."""
    asked: list[Any] = []

    async def insist(_: JobClient, body: Any, *__: float) -> None:
        asked.append(body)

    monkeypatch.setattr(JobClient, "_insist", insist)
    store = MemoryServer().connect()
    observer = JobsObserver(cast("Any", None), Coordinator("h:1"), b"", store)
    reign = QueueReign(QueueStore(store), cast("Any", None), observer, cast("Any", None))
    reign._machine = cast("Any", SimpleNamespace())
    await reign._do(SendAway("a", 3, 30.0, "others come first"))
    assert asked == [AskPreempt("others come first", 30.0, life=3)]
