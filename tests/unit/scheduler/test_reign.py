"""A reign: what follows from an act that comes to nothing."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from edl.cluster.queue.queue_entries import JobEntry, JobPhase, NodeReport, QueueEvent, Submission
from edl.cluster.queue.scheduler_inputs import (
    Act,
    BeginLife,
    CancelAsked,
    DrainAsked,
    JobLook,
    JobLooked,
    LifeReady,
    LifeRefused,
    LookOnce,
    NodeLeftOut,
    NodeReported,
    QueueInput,
    Resolved,
    SendAway,
    SizeWanted,
    Submitted,
)
from edl.coordination.coordinator_settings import Coordinator
from edl.coordination.memory_store import MemoryServer
from edl.coordination.store import Store, Watch
from edl.core.job.leader_machine import new_record
from edl.errors import CheckpointError, Fenced, PeerError
from edl.outside.job_client import JobClient
from edl.protocol import node_paths
from edl.protocol.leader_messages import AskPreempt
from edl.protocol.record import JobState, encode_record
from edl.scheduler import job_poller as observer_module
from edl.scheduler import queue_store, scheduler_loop
from edl.scheduler.cluster_home import ClusterHome
from edl.scheduler.job_poller import JobsObserver
from edl.scheduler.queue_store import AGENTS, STORY, QueueStore
from edl.scheduler.scheduler_loop import SchedulerLoop

FENCE = "/fence"
JOB = JobEntry(Submission("a", ("train",), "/", "ann", 1.0), life=2)


class ScriptedMachine:
    """It keeps what it hears, and wants `acts` at once."""

    def __init__(self, jobs: Sequence[JobEntry], *acts: Act) -> None:
        self.jobs = {job.name: job for job in jobs}
        self.nodes: dict[str, object] = {}
        self.acts = acts
        self.heard: list[QueueInput] = []
        self.forgotten: list[str] = []

    def handle(self, inputs: Sequence[QueueInput], wall: float, now: float) -> Resolved:
        self.heard += inputs
        acts, self.acts = self.acts, ()
        return Resolved(acts=acts)

    def validate(self) -> None: ...
    def forget(self, job: str) -> None:
        self.forgotten.append(job)


@asynccontextmanager
async def reigning(queue: QueueStore, observer: Any, machine: ScriptedMachine) -> AsyncIterator[ScriptedMachine]:
    """Of that machine."""
    await queue.store.create(FENCE)
    leads: Any = SimpleNamespace(term=1, fence=FENCE)
    reign = SchedulerLoop(queue, leads, observer, lambda _: cast("Any", machine))
    ruling = asyncio.create_task(reign.run())
    try:
        async with asyncio.timeout(10):
            yield machine
    finally:
        ruling.cancel()
        await asyncio.gather(ruling, return_exceptions=True)


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - a machine has no event for what only tests look at
        await asyncio.sleep(0.001)


def hears(machine: ScriptedMachine, *inputs: QueueInput) -> bool:
    return all(one in machine.heard for one in inputs)


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
    reason = f"{type(error).__name__}: no"
    refused = LifeRefused("a", 2, reason, again=True)
    unknown = JobLooked("a", 2, JobLook(), final=True)
    machine = ScriptedMachine([JOB], BeginLife("a", 2), LookOnce("a", 2))
    async with reigning(QueueStore(MemoryServer().connect()), FailingObserver(error), machine):
        await until(lambda: hears(machine, refused, unknown))


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
    await theirs.create(node_paths.record("a"), encode_record(new_record("a", 1.0)))
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
    await before.create(node_paths.record("a"), encode_record(new_record("a", 1.0)))
    await before.create(f"{node_paths.workers('a')}/a-1", ephemeral=True)
    assert isinstance(await _begun(server.connect(), home, made=2, life=2), LifeReady)


async def test_a_scheduler_that_leads_no_more_removes_nothing(tmp_path: Path) -> None:
    """It was paused, and the job has a life since that it does not know of."""
    server, home = MemoryServer(), ClusterHome(tmp_path)
    home.make()
    store = server.connect()
    await store.create(node_paths.record("a"), encode_record(new_record("a", 1.0)))
    job = JobEntry(Submission("a", ("train",), "/", "ann", 1.0), life=2, made=2)
    with pytest.raises(Fenced):
        await JobsObserver(home, cast("Any", None), b"", store, fence=FENCE).begin_life(job)
    assert await store.read(node_paths.record("a")) is not None


class DeafQueue(QueueStore):
    """No watch of its wakes anybody."""

    def watch(self, path: str, wake: Callable[[], None]) -> Watch:
        return super().watch(path, lambda: None)


async def test_now_and_then_everything_is_read_again_also_while_jobs_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_loop, "ALL_EVERY_S", 0.02)
    monkeypatch.setattr(scheduler_loop, "JOBS_EVERY_S", 0.01)
    queue = DeafQueue(MemoryServer().connect())
    machine = ScriptedMachine([msgspec.structs.replace(JOB, ready=True, phase=JobPhase.RUNNING)])
    async with reigning(queue, FailingObserver(PeerError("no")), machine):
        await until(lambda: machine.heard)
        report, changed = NodeReport("n", (0,)), NodeReport("n", (0, 1))
        await queue.tell(report)
        await queue.store.create(f"{AGENTS}/n", ephemeral=True)
        await queue.submit(Submission("b", ("train",), "/", "ann", 1.0), {})
        await queue.cancel("b")
        await queue.ask_size("b", 3)
        await queue.drain(kill=True)
        await until(
            lambda: hears(machine, NodeReported(report), CancelAsked("b"), SizeWanted("b", 3), DrainAsked(True))
        )
        assert any(isinstance(one, Submitted) for one in machine.heard)
        await queue.tell(changed)
        await until(lambda: hears(machine, NodeReported(changed)))


async def test_a_reign_begins_with_the_nodes_that_the_one_before_has_left_out() -> None:
    queue = QueueStore(MemoryServer().connect())
    await queue.prepare()
    await queue.tell(NodeReport("n", (0,)))
    until_wall = time.time() + 60
    told = [
        QueueEvent(1.0, "node_left_out", "", "long ago", {"node": "n", "until": 2.0}),
        QueueEvent(3.0, "node_left_out", "", "again", {"node": "n", "until": until_wall}),
        QueueEvent(1.0, "node_left_out", "", "long ago", {"node": "m", "until": 2.0}),
    ]
    await queue.store.create(STORY, msgspec.json.encode(told))
    async with reigning(queue, None, ScriptedMachine([])) as machine:
        await until(lambda: machine.heard)
        assert machine.heard[:2] == [NodeReported(NodeReport("n", (0,))), NodeLeftOut("n", until_wall)]
        assert not any(isinstance(one, NodeLeftOut) for one in machine.heard[2:])


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
    await queue.submit(Submission("a", ("train",), "/", "ann", 1.0), {})
    record = msgspec.structs.replace(new_record("a", 1.0), state=state)
    await store.create(node_paths.record("a"), encode_record(record))
    over = [msgspec.structs.replace(job, phase=JobPhase.FINISHED) for job in await queue.jobs()]
    observer = JobsObserver(cast("Any", None), cast("Any", None), b"", store, FENCE, alone=alone)
    async with reigning(queue, observer, ScriptedMachine(over)) as machine:
        await until(lambda: machine.heard)
    assert (await queue.names(), machine.forgotten) == ((), ["a"])
    assert (await store.read(node_paths.record("a")) is not None) is stays


async def test_a_job_is_asked_to_go_in_the_life_that_was_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its leader refuses the request of who was paused meanwhile."""
    asked: list[Any] = []

    async def insist(_: JobClient, body: Any, *__: float) -> None:
        asked.append(body)

    monkeypatch.setattr(JobClient, "_insist", insist)
    store = MemoryServer().connect()
    observer = JobsObserver(cast("Any", None), Coordinator("h:1"), b"", store)
    machine = ScriptedMachine([], SendAway("a", 3, 30.0, "others come first"))
    async with reigning(QueueStore(store), observer, machine):
        await until(lambda: asked)
    assert asked == [AskPreempt("others come first", 30.0, life=3)]
