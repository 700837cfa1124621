"""No event is lost and none is written twice, whatever becomes of a leader's writes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence

import msgspec
import pytest

from edl import events
from edl.clock import SystemClock
from edl.coordination.election import Candidate, Reign
from edl.coordination.memory_store import MemoryServer, MemoryStore
from edl.coordination.store import Op, StoreRefused
from edl.core.job.commit import BatchDecided
from edl.core.job.leader_inputs import Tell
from edl.core.job.leader_machine import new_record
from edl.daemon import record_store
from edl.daemon.leader_shell import Leader, LeaderConfig
from edl.daemon.record_store import RecordStore
from edl.errors import Fenced, StoreUnavailable, UsageError
from edl.events import Kind
from edl.facts import EpochEnded
from edl.protocol import leader_messages as say
from edl.protocol import node_paths
from edl.protocol.leader_messages import Observation, Phase
from edl.protocol.record import Gone, Identity, Record, decode_record, encode_record
from edl.transport.call_errors import Refusals, Refused
from edl.transport.service import Call

JOB = "j"
UNSENT, UNANSWERED, LATE, LATER, DONE = "unsent", "unanswered", "late", "later", "done"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_store, "RETRY_S", 0.001)


class Frail(MemoryStore):
    """A store whose next transactions meet these fates. A late transaction is carried out as the next one arrives, or
    later, as the one after that arrives.
    """

    def __init__(self, server: MemoryServer, *fates: str) -> None:
        super().__init__(server)
        self.fates: Iterator[str] = iter(fates)
        self.answers = asyncio.Event()
        self.answers.set()
        self.waiting = asyncio.Event()  # for an answer
        self._late: list[tuple[int, Sequence[Op], str | None]] = []

    async def commit(self, ops: Sequence[Op], *, fence: str | None = None) -> tuple[str | int | None, ...]:
        if not self.answers.is_set():
            self.waiting.set()
        await self.answers.wait()
        due, self._late = self._late, []
        for others, late_ops, late_fence in due:
            if others:
                self._late.append((others - 1, late_ops, late_fence))
            else:
                with contextlib.suppress(StoreRefused, Fenced):  # no caller hears of that
                    await super().commit(late_ops, fence=late_fence)
        fate = next(self.fates, DONE)
        if fate == UNSENT:
            raise StoreUnavailable("not connected")
        if fate in (LATE, LATER):
            self._late.append((fate == LATER, ops, fence))
            raise StoreUnavailable("no answer in time")
        results = await super().commit(ops, fence=fence)
        if fate == UNANSWERED:
            raise StoreUnavailable("the connection broke before the answer came")
        return results


async def elected(store: MemoryStore) -> tuple[Candidate, Reign]:
    began: asyncio.Future[Reign] = asyncio.get_running_loop().create_future()

    def on_change(reign: Reign | None) -> None:
        if reign is not None and not began.done():
            began.set_result(reign)

    candidate = Candidate(store, node_paths.root(JOB), "w0 127.0.0.1:1", on_change)
    candidate.stand()
    return candidate, await began


async def renewed(candidate: Candidate) -> Reign:
    candidate.renew()
    while candidate.reign is None:  # noqa: ASYNC110 - its one listener is `elected`
        await asyncio.sleep(0.001)
    return candidate.reign


async def kept_events(store: MemoryStore) -> list[dict[str, object]]:
    names = node_paths.in_order(await store.children(node_paths.events(JOB)))
    nodes = [await store.read(f"{node_paths.events(JOB)}/{name}") for name in names]
    return [event.flat() for node in nodes if node is not None for event in events.decode(node.value)]


async def opened(*fates: str) -> tuple[Frail, RecordStore[str], Candidate]:
    store = Frail(MemoryServer())
    candidate, reign = await elected(store)
    one: RecordStore[str] = RecordStore(JOB, store, reign, SystemClock())
    await one.open()
    store.fates = iter(fates)
    return store, one, candidate


def story(record: Record, *numbers: int) -> BatchDecided[str]:
    return BatchDecided(
        record, tuple(Tell(EpochEnded(epoch=number), 0, number) for number in numbers), (), 0, at_rest=False
    )


@pytest.mark.parametrize("fate", [UNSENT, UNANSWERED, LATE, LATER])
@pytest.mark.parametrize("number", [0, 1, 2])
async def test_a_write_without_an_answer_is_on_record_whole_or_never(fate: str, number: int) -> None:
    """The leader of the next term finds which, and no write of the term before changes that any more."""
    store, one, candidate = await opened(*[DONE] * number, fate)
    found = one.record
    assert found is not None
    later = msgspec.structs.replace(found, version=found.version + 1)
    batches = [story(found, 1), story(later, 2), story(later, 3, 4)]  # the first and the last add events alone
    for batch in batches[:number]:
        await one.keep(batch)
    with pytest.raises(StoreUnavailable):
        await one.keep(batches[number])
    other: RecordStore[str] = RecordStore(JOB, store, await renewed(candidate), SystemClock())
    kept = number + (fate in (UNANSWERED, LATE))
    assert await other.open() == (found if kept < 2 else later)
    newest = msgspec.structs.replace(later, version=later.version + 1)
    await other.keep(story(newest, 5))
    await other.keep(story(newest, 6))
    expected = [event for steps in ([1], [2], [3, 4])[:kept] for event in steps]
    assert [event["step"] for event in await kept_events(store)] == [*expected, 5, 6]
    assert other.record == newest
    await candidate.resign()


async def test_a_record_that_another_program_has_written_is_not_overwritten() -> None:
    store, one, candidate = await opened()
    assert one.record is not None
    await store.write(node_paths.record(JOB), encode_record(one.record))
    with pytest.raises(UsageError, match="another program has written the record of job j"):
        await one.keep(story(one.record, 1))
    await candidate.resign()


async def test_what_a_thousand_workers_cause_at_once_is_one_node() -> None:
    """An etcd that is started as it comes takes 128 operations, and no leader can write less than this."""
    store, one, candidate = await opened()
    assert one.record is not None
    await one.keep(story(one.record, *range(1000)))
    [name] = await store.children(node_paths.events(JOB))
    assert node_paths.events_in(name) == 1000
    assert [event["step"] for event in await kept_events(store)] == list(range(1000))
    await candidate.resign()


async def test_a_deposed_leader_tells_nothing() -> None:
    store, one, candidate = await opened()
    assert one.record is not None
    await candidate.resign()
    with pytest.raises(Fenced):
        await one.keep(story(one.record, 1))
    assert not await kept_events(store)


async def test_a_record_that_is_too_large_is_refused_in_the_jobs_own_words() -> None:
    _, one, candidate = await opened()
    noise = tuple(Gone(f"w{number}", "".join(map(str, range(number, number + 9)))) for number in range(200_000))
    large = msgspec.structs.replace(new_record(JOB, 0.0), gone=noise)
    with pytest.raises(UsageError, match=r"the job's record of 0 members has \d+ bytes, and \d+ in events come with"):
        await one.keep(story(large, 1))
    await candidate.resign()


# ------------------------------------------------------------------------------------------------- through a leader


def broken(step: int) -> say.Report:
    return say.Report(
        Observation(
            phase=Phase.BROKEN, generation=1, step=step, leases_of=1, step_time_s=0.01, reason="connection reset"
        )
    )


def training(step: int) -> say.Report:
    return say.Report(msgspec.structs.replace(broken(step).observation, phase=Phase.TRAINING, reason=""))


async def lead(store: Frail, reign: Reign) -> tuple[Leader, asyncio.Task[None]]:
    leader = Leader(LeaderConfig(JOB, "w0", "127.0.0.1", 5.0), store, reign, SystemClock(), Refusals())
    return leader, asyncio.ensure_future(leader.run())


class SetBack(SystemClock):
    """A machine whose wall clock is set."""

    back_s = 0.0

    def wall(self) -> float:
        return super().wall() - self.back_s


async def test_what_a_leader_has_served_does_not_shrink_though_the_wall_clock_is_set_back() -> None:
    store, clock = Frail(MemoryServer()), SetBack()
    candidate, reign = await elected(store)
    leader = Leader(LeaderConfig(JOB, "w0", "127.0.0.1", 5.0), store, reign, clock, Refusals())
    task = asyncio.ensure_future(leader.run())
    await store.create(node_paths.worker(JOB, "w0"), b"", ephemeral=True)
    await leader.answer(Call("w0", reign.term, say.Register(Identity("w0", "h", "127.0.0.1", 1, 2), 1, 1, 0)))
    served = 0.0
    while not served:
        await asyncio.sleep(0.01)
        served = sum(now.tally.bad_s.values()) if (now := leader.status()) is not None else 0.0
    clock.back_s = 3600.0
    now = leader.status()
    assert now is not None and sum(now.tally.bad_s.values()) >= served
    await candidate.resign()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("fate", [UNSENT, UNANSWERED, LATE, LATER])
async def test_a_void_mini_batch_is_told_of_once_by_all_leaders_together(fate: str) -> None:
    store = Frail(MemoryServer())
    candidate, reign = await elected(store)
    leader, task = await lead(store, reign)
    for worker in ("w0", "w1"):
        await store.create(node_paths.worker(JOB, worker), b"", ephemeral=True)
        register = say.Register(Identity(worker, "h", "127.0.0.1", 1, 2), 2, 1, 0)
        await leader.answer(Call(worker, reign.term, register))
    for worker in ("w0", "w1"):
        await leader.answer(Call(worker, reign.term, training(7)))
    store.fates = iter([fate])
    with pytest.raises(Refused):  # the daemon tells it the next leader, as it did not hear whether it was taken
        await leader.answer(Call("w0", reign.term, broken(7)))
    await task
    assert leader.in_doubt
    await candidate.resign()
    candidate, reign = await elected(store)
    leader, task = await lead(store, reign)
    await leader.answer(Call("w0", reign.term, broken(7)))
    assert [event["kind"] for event in await kept_events(store)].count(Kind.BATCH_VOIDED) == 1
    await candidate.resign()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_what_waits_to_be_written_is_not_shown() -> None:
    store = Frail(MemoryServer())
    candidate, reign = await elected(store)
    leader, task = await lead(store, reign)

    async def members() -> list[str]:
        told = await leader.answer(Call("w0", reign.term, say.AskStatus()))
        assert isinstance(told, say.Told)
        return [worker.id for worker in told.status.workers]

    def register(worker: str) -> asyncio.Task[say.Reply]:
        body = say.Register(Identity(worker, "h", "127.0.0.1", 1, 2), 2, 1, 0)
        return asyncio.ensure_future(leader.answer(Call(worker, reign.term, body)))

    for worker in ("w0", "w1"):
        await store.create(node_paths.worker(JOB, worker), b"", ephemeral=True)
    await register("w0")
    store.answers.clear()
    joining = register("w1")
    await store.waiting.wait()
    assert await members() == ["w0"]
    store.answers.set()
    await joining
    assert await members() == ["w0", "w1"]
    await candidate.resign()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_what_was_told_of_a_worker_is_on_record() -> None:
    record: Record = msgspec.structs.replace(new_record(JOB, 0.0), voided={"w0": 3})
    assert decode_record(encode_record(record)).voided == {"w0": 3}
