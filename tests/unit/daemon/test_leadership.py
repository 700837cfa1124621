"""A leader that cannot lead makes room, and says why; where no daemon can, the job ends with that reason."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import errno
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from edl import events
from edl.clock import SystemClock
from edl.coordination.election import Reign, read_leader
from edl.coordination.memory_store import MemoryServer, MemoryStore
from edl.coordination.store import Op, StoredNode
from edl.core.job import resignations
from edl.core.job.leader_machine import JobMachine
from edl.core.job.resignations import Resignation, decode
from edl.daemon import leadership as office_module
from edl.daemon.leader_shell import Leader, LeaderConfig
from edl.daemon.leadership import Leadership
from edl.daemon.policy_runner import PolicyRunner
from edl.errors import EdlError, StoreUnavailable
from edl.protocol import leader_messages as say
from edl.protocol import node_paths
from edl.protocol.assignment import Verdict
from edl.protocol.record import Gone, Identity, JobState, Record, decode_record, encode_record
from edl.transport.call_errors import Refusals, Refused
from edl.transport.service import Call

JOB, SESSION_S, SETTLED_S = "j", 0.05, 60.0


Spoil = Callable[[MemoryStore], MemoryStore]


class Door:
    term = 0


class Desk:
    """A daemon, as far as it may lead; each of its leaders has the store that `spoil` makes of its own."""

    def __init__(
        self,
        server: MemoryServer,
        worker: str,
        spoil: Spoil,
        settled_s: float,
        session_s: float = SESSION_S,
    ) -> None:
        self.store = server.connect()
        self.worker = worker
        self.door = Door()
        self.led: list[int] = []
        about = LeaderConfig(JOB, worker, "127.0.0.1", session_s, settled_s)

        def lead(reign: Reign) -> Leader:
            self.led.append(reign.term)
            return Leader(
                about, spoil(self.store), reign, SystemClock(), Refusals(), restored_at=lambda: self.office.doubted_at
            )

        self.office = Leadership(about, 1, self.store, self.door, SystemClock(), lead)

    async def stand(self) -> None:
        await self.store.create(node_paths.worker(JOB, self.worker), b"", ephemeral=True)
        self.office.stand()

    async def register(self, worker: str) -> say.Reply:
        return await self.office.answer(
            Call(worker, self.door.term, say.Register(Identity(worker, "h", "127.0.0.1", 1, 2), 2, 1, 0))
        )

    async def events(self) -> list[dict[str, object]]:
        names = node_paths.in_order(await self.store.children(node_paths.events(JOB)))
        nodes = [await self.store.read(f"{node_paths.events(JOB)}/{name}") for name in names]
        return [event.flat() for node in nodes if node is not None for event in events.decode(node.value)]

    async def record(self) -> Record | None:
        node = await self.store.read(node_paths.record(JOB))
        return None if node is None else decode_record(node.value)

    async def resigned(self) -> list[dict[str, object]]:
        return [event for event in await self.events() if event["kind"] == "leader_resigned"]


async def until(true: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(20):
        while not await true():  # noqa: ASYNC110 - what is waited for lies in a store
            await asyncio.sleep(0.005)


@asynccontextmanager
async def desks(
    number: int,
    spoil: Spoil = lambda store: store,
    settled_s: float = SETTLED_S,
    session_s: float = SESSION_S,
) -> AsyncIterator[list[Desk]]:
    server = MemoryServer()
    found = [Desk(server, f"w{index}", spoil, settled_s, session_s) for index in range(number)]
    for desk in found:
        await desk.stand()
    try:
        yield found
    finally:
        for desk in found:
            await desk.office.leave()
            await desk.store.close()


def once(spoil: Spoil) -> Spoil:
    left = [spoil]
    return lambda store: left.pop()(store) if left else store


async def raising(*_: object, **_more: object) -> Any:
    await asyncio.sleep(0)
    raise OSError(errno.EMFILE, "Too many open files")


def spoil_first_look(theirs: MemoryStore) -> MemoryStore:
    store = copy.copy(theirs)
    store.read = raising  # type: ignore[method-assign]
    return store


def spoil_roll_call(theirs: MemoryStore) -> MemoryStore:
    """After the look at the workers with which a leader begins."""
    store, children = copy.copy(theirs), theirs.children
    looks = iter([children])

    async def once_only(path: str) -> tuple[str, ...]:
        look = next(looks, raising) if path == node_paths.workers(JOB) else children
        return await look(path)

    store.children = once_only  # type: ignore[method-assign]
    return store


def spoil_decision(theirs: MemoryStore) -> MemoryStore:
    """Not the first one, that it leads."""
    store, commit = copy.copy(theirs), theirs.commit

    async def once_only(ops: Sequence[Op], *, fence: str | None = None) -> tuple[str | int | None, ...]:
        store.commit = raising  # type: ignore[method-assign]
        return await commit(ops, fence=fence)

    store.commit = once_only  # type: ignore[method-assign]
    return store


def spoil_record(theirs: MemoryStore) -> MemoryStore:
    """More than the coordinator takes."""
    store, read = copy.copy(theirs), theirs.read
    noise = tuple(Gone(f"w{n}", "".join(map(str, range(n, n + 9)))) for n in range(100_000))

    async def read_more(path: str) -> StoredNode | None:
        node = await read(path)
        if node is None or path != node_paths.record(JOB):
            return node
        record = msgspec.structs.replace(decode_record(node.value), gone=noise)
        return dataclasses.replace(node, value=encode_record(record))

    store.read = read_more  # type: ignore[method-assign]
    return store


@pytest.mark.parametrize("spoil", [spoil_first_look, spoil_roll_call, spoil_decision, spoil_record])
async def test_a_leader_that_cannot_lead_makes_room_for_another(spoil: Spoil) -> None:
    async with desks(2, once(spoil)) as (one, other):
        await until(lambda: _led(other, asks=one))
        await until(other.resigned)
        (event,) = await other.resigned()
        assert event["worker"] == "w0" and event["term"] == 1
        words = "the job's record of 0 members" if spoil is spoil_record else "OSError: [Errno 24] Too many open files"
        assert str(event["reason"]).startswith(words)
        await until(lambda: _answers(other))
        assert len(one.led) == 1 and one.door.term == 0


async def _led(desk: Desk, *, asks: Desk | None = None) -> bool:
    """`asks`: this one is asked for a decision meanwhile."""
    if asks is not None:
        await _answers(asks)
    return bool(desk.led)


async def _answers(desk: Desk) -> bool:
    """Within the time that a call has: a leader may resign before it answers."""
    try:
        async with asyncio.timeout(1):
            reply = await desk.register(f"x{asyncio.get_running_loop().time()}")
    except (Refused, TimeoutError):
        return False
    return isinstance(reply, say.Done | say.Rejected)


async def test_a_governor_that_raises_is_no_leader_without_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    run = PolicyRunner.run
    broken = [raising]

    async def fails_once(governor: PolicyRunner) -> None:
        await (broken.pop()() if broken else run(governor))

    monkeypatch.setattr(PolicyRunner, "run", fails_once)
    async with desks(2) as (_, other):
        await until(lambda: _led(other))
        assert len(await other.resigned()) == 1


async def test_whose_request_no_leader_takes_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision that raises; it is the caller who asks again, of another leader."""
    async with desks(1) as (one,):
        await until(lambda: _answers(one))

        def handle(*_: object, **_more: object) -> None:
            raise RuntimeError("a bug")

        monkeypatch.setattr(JobMachine, "handle", handle)
        async with asyncio.timeout(5):
            with pytest.raises(Refused):
                await one.register("w1")


async def test_the_only_daemon_stands_again_after_a_while() -> None:
    async with desks(1, once(spoil_first_look)) as (one,):
        await until(lambda: _answers(one))
        assert one.led == [1, 2]


async def test_where_no_daemon_can_lead_the_job_ends_with_the_reason() -> None:
    async with desks(2, spoil_roll_call) as (one, other):
        await until(lambda: _has_failed(one))
        record = await one.record()
        assert record is not None and record.reason == (
            f"{resignations.LEAST} leaders, one after another, could not lead: OSError: [Errno 24] Too many open files"
        )
        told = [event for event in await one.events() if event["kind"] != "leader_elected"][: resignations.LEAST + 1]
        assert [(event["kind"], event.get("worker")) for event in told] == [
            ("leader_resigned", "w0"),
            ("leader_resigned", "w1"),
            ("leader_resigned", "w0"),
            ("job_failed", None),
        ]
        assert told[-1]["reason"] == record.reason
        # Those that cannot even tell that it is over give up, one after the other.
        for desk in (one, other):
            async with asyncio.timeout(20):
                assert "cannot lead the job" in await desk.office.hopeless


async def _has_failed(desk: Desk) -> bool:
    record = await desk.record()
    return record is not None and record.state is JobState.FAILED


async def test_each_of_many_may_try() -> None:
    async with desks(5, spoil_roll_call) as found:
        await until(lambda: _has_failed(found[0]))
        workers = [event["worker"] for event in await found[0].resigned()]
        assert workers[:5] == ["w0", "w1", "w2", "w3", "w4"]


@pytest.mark.parametrize("value", [b'{"job": ', b'{"job":"j"}', b"\x78\x9cgarbage", b"\xff\xfe"])
async def test_a_record_that_cannot_be_read_ends_the_job_and_all_workers_hear_of_it(value: bytes) -> None:
    server = MemoryServer()
    store = server.connect()
    for path, content in (
        (node_paths.record(JOB), value),
        (node_paths.events(JOB), b""),
        (node_paths.workers(JOB), b""),
    ):
        await store.create(path, content)
    one = Desk(server, "w0", lambda store: store, SETTLED_S)
    await one.stand()
    await until(lambda: _orders_stop(one))
    record = await one.record()
    assert record is not None and record.reason.startswith("3 leaders, one after another, could not lead: ")
    assert not one.office.hopeless.done()
    await one.office.leave()


async def _orders_stop(desk: Desk) -> bool:
    try:
        reply = await desk.office.answer(Call("w0", desk.door.term, say.Await(0, 0, 0.0)))
    except Refused:
        return False
    return isinstance(reply, say.Ordered) and reply.orders.verdict is Verdict.STOP


async def test_who_leads_well_for_some_time_makes_the_row_be_forgotten() -> None:
    async with desks(1, once(spoil_roll_call), settled_s=0.05) as (one,):
        await until(lambda: _answers(one))

        async def forgotten() -> bool:
            node = await one.store.read(node_paths.resigned(JOB))
            return node is not None and decode(node.value) == ()

        await until(forgotten)


async def test_where_nothing_of_it_can_be_told_a_daemon_gives_up_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def words(_: object) -> list[object]:
        raise UnspeakableError("no room")

    class UnspeakableError(EdlError):
        """Neither away nor over."""

    monkeypatch.setattr("edl.daemon.leadership.ResignationWriter.__call__", words)
    async with desks(1, spoil_roll_call) as (one,):
        async with asyncio.timeout(20):
            reason = await one.office.hopeless
        assert "Too many open files" in reason
        assert len(one.led) == office_module.UNHEARD
        assert not await one.store.children(f"{node_paths.root(JOB)}/candidates")


async def test_a_resignation_waits_for_a_coordinator_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its session goes on, so no other could lead while its node is there."""
    failures = [3]

    async with desks(2, once(spoil_roll_call)) as (one, other):
        commit = one.store.commit

        async def away(*arguments: object, **keywords: object) -> object:
            if failures[0] and len(arguments[0]) > 2:  # type: ignore[arg-type]
                failures[0] -= 1
                raise StoreUnavailable("no answer")
            return await commit(*arguments, **keywords)  # type: ignore[arg-type]

        monkeypatch.setattr(one.store, "commit", away)
        await until(lambda: _led(other))
        leader = await read_leader(other.store, node_paths.root(JOB))
        assert leader is not None and leader.ident.startswith("w1")
        assert len(await other.resigned()) == 1


# ------------------------------------------------------------------------------------------- a write without an answer


@pytest.mark.parametrize("carried_out", [True, False])
async def test_a_write_without_an_answer_begins_another_term(carried_out: bool) -> None:
    """The same daemon leads by what it finds on record. A session that ended with the answer means nothing yet."""
    async with desks(2, session_s=60.0) as (one, other):
        await until(lambda: _registers(one, "w0"))
        await until(lambda: _registers(one, "w1"))
        commit = one.store.commit

        async def unanswered(ops: Sequence[Op], *, fence: str | None = None) -> tuple[str | int | None, ...]:
            one.store.commit = commit  # type: ignore[method-assign]
            if carried_out:
                await commit(ops, fence=fence)
            raise StoreUnavailable("no answer in time")

        one.store.commit = unanswered  # type: ignore[method-assign]
        with pytest.raises(Refused):
            await one.register("w2")
        await one.store.delete(node_paths.worker(JOB, "w1"))
        await until(lambda: _registers(one, "w2"))
        record = await one.record()
        assert record is not None and [member.identity.id for member in record.members] == ["w0", "w1", "w2"]
        joined = [event["term"] for event in await one.events() if event.get("worker") == "w2"]
        assert joined == [1 if carried_out else 2]
        assert one.led == [1, 2] and not other.led


async def _registers(desk: Desk, worker: str) -> bool:
    try:
        return await desk.register(worker) == say.Done()
    except Refused:
        return False


# ------------------------------------------------------------------------------------------------------ the verdict


def row(*causes: str) -> list[Resignation]:
    return [Resignation(f"w{n}", n, cause, f"because of {cause}", 1) for n, cause in enumerate(causes)]


def test_three_may_try_and_more_where_there_are_more_and_not_all_of_a_thousand() -> None:
    for daemons, enough in ((1, 3), (3, 3), (5, 5), (1000, resignations.MOST)):
        assert not resignations.verdict(row(*["a"] * (enough - 1)), daemons)
        assert resignations.verdict(row(*["a"] * enough), daemons).endswith("could not lead: because of a")


def test_other_causes_do_not_count_but_not_for_ever() -> None:
    assert not resignations.verdict(row("a", "b", "a", "b"), 1)
    assert resignations.verdict(row(*"abcdefghi"), 1) == (
        "9 leaders, one after another, could not lead; the last one: because of i"
    )
