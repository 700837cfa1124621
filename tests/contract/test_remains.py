"""What a job that is over has left at its coordinator, and how it goes: on the fake and on a real ZooKeeper."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from edl import events
from edl.coordination.store import NotEmpty, StoreRefused
from edl.core.job.leader_machine import new_record
from edl.daemon import leftovers
from edl.daemon.leftovers import Standing
from edl.errors import JobFailed, PeerError, StoreUnavailable
from edl.events import Event, Kind
from edl.host.credentials import known_secret, shared_secret
from edl.protocol import node_paths
from edl.protocol.record import JobState, encode_record

BEGAN, ENDED = 1000.0, 5000.0
EVENTS, AT_ONCE = 25, 5  # as many transactions as 250 events take, 50 at once


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where 250 nodes are not what it is about, so many were half of the processor time of all contracts."""
    monkeypatch.setattr(leftovers, "AT_ONCE", AT_ONCE)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A job of this test's own: the real server is shared."""
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[-60:]


async def leave(
    store: Any, job: str, state: JobState = JobState.FINISHED, keep_s: float = 100.0, told: int = EVENTS
) -> None:
    """All nodes that a job leaves."""
    record = msgspec.structs.replace(new_record(job, BEGAN), state=state, keep_s=keep_s)
    for path, value in (
        (node_paths.record(job), encode_record(record)),
        (node_paths.secret(job), b"s" * 32),
        (node_paths.workers(job), b""),
        (node_paths.candidates(job), b""),
        (node_paths.leader(job), b"{}"),
        (node_paths.events(job), b""),
    ):
        await store.create(path, value)
    for number in range(told):
        some = [Event(ENDED - told + 1 + number, job, Kind.SCALED, 1, 1, number)]
        some[:0] = [Event(BEGAN, job, Kind.SCALED, 1, 1, number)] * (number % 2)  # the last counts
        await store.create(node_paths.told(job, len(some)), events.encode(*some), sequence=True)


@pytest.mark.slow
async def test_nothing_is_left_of_a_job_that_is_removed(store: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # so many at once as in earnest: a coordinator bounds what a transaction may hold
    await leave(store, name, told=250)
    await leftovers.remove(store, name)
    assert name not in await leftovers.jobs(store)
    assert await store.read(node_paths.root(name)) is None
    await leftovers.remove(store, name)  # harmless twice


async def test_the_secret_goes_first_and_the_record_last(store: Any, name: str) -> None:
    """So that what was broken off in the middle is known for what it is, and is gone on with."""
    await leave(store, name)
    after = 2
    real = store.commit

    async def commit(ops: Any, **fence: Any) -> Any:
        nonlocal after
        if not after:
            raise StoreUnavailable("cut")
        after -= 1
        return await real(ops, **fence)

    store.commit = commit
    with pytest.raises(StoreUnavailable):
        await leftovers.remove(store, name)
    assert await store.read(node_paths.secret(name)) is None
    found = await leftovers.look(store, name)
    assert found is not None
    assert found.verdict is Standing.OVER
    store.commit = real
    await leftovers.remove(store, name)
    assert await store.read(node_paths.root(name)) is None


async def test_a_worker_that_comes_meanwhile_keeps_its_node(store: Any, name: str) -> None:
    await leave(store, name)
    await store.create(node_paths.worker(name, "late"), ephemeral=True)
    own = f"{node_paths.worker(name, 'late')}"
    real = store.commit

    async def commit(ops: Any, **fence: Any) -> Any:
        if any(op.path == node_paths.workers(name) for op in ops):
            await store.create(f"{node_paths.workers(name)}/later", ephemeral=True)
        return await real(ops, **fence)

    store.commit = commit
    with pytest.raises(NotEmpty):
        await leftovers.remove(store, name)
    assert await store.read(own) is None  # what was there when it was looked at has gone
    assert await store.read(node_paths.record(name)) is not None


@pytest.mark.parametrize("done", range(7))
async def test_a_life_that_begins_meanwhile_loses_nothing(store: Any, name: str, done: int) -> None:
    """Two lines clear what a former life has left. One is through first, and its life begins before the other is."""
    await leave(store, name)
    real, left = store.commit, done

    async def commit(ops: Any, **fence: Any) -> Any:
        nonlocal left
        left -= 1
        if left == -1:
            store.commit = real
            await leftovers.remove(store, name)
            await leave(store, name, JobState.RUNNING)
            record = await store.read(node_paths.record(name))
            await store.write(node_paths.record(name), record.value, record.version)  # as one that leads does at once
            store.commit = commit
        return await real(ops, **fence)

    for path in (node_paths.record(name), node_paths.record(name)):  # the job that is over was led for a while
        node = await store.read(path)
        await store.write(path, node.value, node.version)
    store.commit = commit
    with pytest.raises(StoreRefused):
        await leftovers.remove(store, name)
    assert left < 0, "the other line had nothing left to do"
    for path in (
        node_paths.record(name),
        node_paths.secret(name),
        node_paths.workers(name),
        node_paths.candidates(name),
        node_paths.leader(name),
    ):
        assert await store.read(path) is not None, path
    assert len(await store.children(node_paths.events(name))) == EVENTS


@pytest.mark.parametrize(("age_s", "due"), [(99.0, False), (100.0, True)])
async def test_a_job_goes_by_itself_when_its_own_time_is_up(store: Any, name: str, age_s: float, due: bool) -> None:
    await leave(store, name, keep_s=100.0)
    gone = await leftovers.sweep(store, ENDED + age_s, besides="another")
    assert (name in gone) == due
    assert (await store.read(node_paths.record(name)) is None) == due


@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.STARTING, JobState.SCALING])
async def test_a_job_that_is_not_over_never_goes_by_itself(store: Any, name: str, state: JobState) -> None:
    await leave(store, name, state)
    assert name not in await leftovers.sweep(store, ENDED + 1e9, besides="another")
    found = await leftovers.look(store, name)
    assert found is not None
    assert found.verdict is Standing.DESERTED
    await store.create(node_paths.worker(name, "w1"), ephemeral=True)
    found = await leftovers.look(store, name)
    assert found is not None
    assert found.verdict is Standing.LIVING


async def test_a_leader_leaves_its_own_job_alone(store: Any, name: str) -> None:
    await leave(store, name)
    assert name not in await leftovers.sweep(store, ENDED + 1e9, besides=name)


async def test_what_is_none_of_ours_stays(store: Any, name: str) -> None:
    await store.create(f"{node_paths.root(name)}/record", b"another program's")
    assert await leftovers.look(store, name) is None
    assert name not in await leftovers.sweep(store, 1e12, besides="another")


async def test_the_secret_of_a_job_that_is_over_does_not_come_back(store: Any, name: str) -> None:
    await leave(store, name)
    await leftovers.forget_secret(store, name)
    with pytest.raises(JobFailed, match=f"job {name} is over .*edl clean {name}"):
        await shared_secret(store, name, b"")
    with pytest.raises(JobFailed):
        await known_secret(store, name, b"")
    assert await store.read(node_paths.secret(name)) is None
    assert await shared_secret(store, name, b"given") == b"given"


async def test_who_only_asks_leaves_no_secret(store: Any, name: str) -> None:
    with pytest.raises(PeerError, match="EDL_SECRET_FILE"):
        await known_secret(store, name, b"")
    assert await store.read(node_paths.secret(name)) is None
    secret = await shared_secret(store, name, b"")
    assert await known_secret(store, name, b"") == secret
