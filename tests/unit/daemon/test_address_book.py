"""Daemons that bring their trainers' addresses to each other: late, twice, not at all, by another one's hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import ClassVar

import msgspec
import pytest

from edl.collectives.rendezvous import Heard
from edl.core.switch.address_exchange import TRADE
from edl.daemon import address_book as module
from edl.daemon.address_book import Here, JobKeys, located, through_with
from edl.protocol.assignment import Assignment, Place, Summons
from edl.protocol.leader_messages import AskAddresses, Phase
from edl.protocol.trainer_messages import TrainerStatus
from edl.transport.call_errors import Reason, Refused, Unauthentic, Unreachable
from edl.transport.memory_transport import Fate
from tests.model.address_meeting import JOB, Gathering, orders

MESH = "global"


class FakeRendezvous:
    """A trainer's rendezvous without the HTTP (tests/unit/collectives/test_rendezvous.py has that)."""

    opened: ClassVar[dict[str, FakeRendezvous]] = {}  # by address
    awaited: frozenset[int] = frozenset()

    def __init__(self, worker: str, rank: int, size: int, heard: Heard, *, on_refused: object) -> None:
        self.rank, self.heard = rank, heard
        self.got: dict[int, bytes] = {}
        self.stopped = False

    def open(self) -> str:
        address = f"address {len(self.opened)}"
        self.opened[address] = self
        return address

    def deliver(self, mesh: str, addresses: Mapping[int, bytes]) -> None:
        assert mesh == MESH
        assert {**addresses, **self.got} == {**self.got, **addresses}
        assert self.rank not in addresses
        self.got |= addresses

    def fail(self, reason: str) -> None: ...

    async def stop(self) -> None:
        self.stopped = True


@pytest.fixture(autouse=True)
def without_http(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Rendezvous", FakeRendezvous)


class Trainer:
    """What its daemon is told and told by."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.rendezvous = FakeRendezvous.opened[place.rendezvous]
        self.daemon = self.rendezvous.heard

    @property
    def got(self) -> dict[int, bytes]:
        return self.rendezvous.got

    def write(self, mesh: str = MESH) -> None:
        """Begins to build a mesh, and says where it listens."""
        self.daemon.began(mesh)
        self.daemon.wrote(mesh, [parcel(self.place.rank, other) for other in range(self.place.size)])

    @property
    def knows_all(self) -> bool:
        ranks = set(range(self.place.size)) - {self.place.rank}
        return self.got == {rank: parcel(rank, self.place.rank) for rank in ranks}


def parcel(sender: int, receiver: int) -> bytes:
    return f"{sender}>{receiver}".encode()


def question(
    generation: int = 1, kind: int = TRADE, parcels: tuple[bytes, ...] = (b"x",), hold_s: float = 1.0
) -> AskAddresses:
    """Of rank 0 in a ring of two."""
    return AskAddresses(generation, MESH, kind, 0, parcels, hold_s)


@asynccontextmanager
async def gathered(size: int, hold_s: float = 5.0) -> AsyncIterator[tuple[Gathering, list[Trainer]]]:
    gathering = Gathering([f"w{number}" for number in range(size)], hold_s=hold_s)
    places = await gathering.open()
    try:
        yield gathering, [Trainer(place) for place in places]
    finally:
        await gathering.stop()


async def all_know(trainers: Sequence[Trainer]) -> None:
    await until(lambda: all(trainer.knows_all for trainer in trainers))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - there is no event for what only tests look at
        await asyncio.sleep(0.001)


def asks() -> bool:
    """Tell whether any daemon asks another one, or waits to."""
    return any(task.get_name().startswith("addresses of ring") for task in asyncio.all_tasks())


@pytest.mark.parametrize("size", [1, 2, 3, 5, 9, 40])
async def test_all_learn_of_all(size: int) -> None:
    async with gathered(size) as (gathering, trainers):
        for trainer in trainers:
            trainer.write()
        await all_know(trainers)
        assert gathering.refusals.snapshot() == {}


async def test_a_member_that_comes_late_is_waited_for() -> None:
    async with gathered(6, hold_s=0.02) as (gathering, trainers):
        for trainer in trainers[:-1]:
            trainer.write()
        await asyncio.sleep(0.1)  # their questions are answered without, and asked again
        assert not any(trainer.knows_all for trainer in trainers)
        trainers[-1].write()
        await all_know(trainers)
        assert gathering.refusals.snapshot() == {}


async def test_a_daemon_that_has_not_heard_of_the_ring_yet_lets_questions_wait() -> None:
    gathering = Gathering(["w0", "w1"])
    await gathering.open()
    for daemon in gathering.daemons:
        daemon.end(1)
    early = Trainer(gathering.follow(0, 2))
    early.write()
    await asyncio.sleep(0.02)
    late = Trainer(gathering.follow(1, 2))
    late.write()
    await all_know([early, late])
    assert gathering.refusals.snapshot() == {}
    await gathering.stop()


async def test_lost_calls_are_made_again_and_doubled_ones_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.001)
    async with gathered(5, hold_s=0.02) as (gathering, trainers):
        number = 0

        def fate(_: object) -> Fate:
            nonlocal number
            number += 1
            return (Fate.DROP, Fate.DOUBLE, Fate.DELIVER)[number % 3]

        gathering.network.fate = fate
        for trainer in trainers:
            trainer.write()
        await all_know(trainers)


async def test_each_mesh_has_addresses_of_its_own() -> None:
    async with gathered(2) as (gathering, trainers):
        trainers[0].write("other")
        trainers[1].write()
        await asyncio.sleep(0.02)
        assert not any(trainer.got for trainer in trainers)
        trainers[0].write()
        await all_know(trainers[:1])
        del gathering


async def test_a_question_of_a_ring_that_is_over_is_refused_and_counted() -> None:
    async with gathered(2) as (gathering, trainers):
        for trainer in trainers:
            trainer.write()
        gathering.daemons[1].end(1)
        caller = gathering.network.client(b"a secret of tests", JOB, "w0", gathering.addresses[1])
        with pytest.raises(Refused) as caught:
            await caller.call(question(), object, term=0, deadline_s=5)
        assert caught.value.reason is Reason.GENERATION
        await until(lambda: not asks())
        assert not trainers[0].knows_all, "none asks on: that ring cannot form"
        assert set(gathering.refusals.snapshot()) == {"generation"}


async def test_a_stranger_is_told_nothing() -> None:
    async with gathered(2) as (gathering, trainers):
        trainers[1].write()
        caller = gathering.network.client(b"another secret!!", JOB, "w0", gathering.addresses[1])
        with pytest.raises((Unauthentic, Refused, Unreachable)):
            await caller.call(question(), object, term=0, deadline_s=5)
        assert set(gathering.refusals.snapshot()) == {"unauthentic"}


async def test_what_no_daemon_may_ask_is_refused() -> None:
    async with gathered(2) as (gathering, trainers):
        trainers[1].write()
        with pytest.raises(Refused) as caught:
            await gathering.daemons[1].answer(question(kind=7), "w0")
        assert caught.value.reason is Reason.MALFORMED
        with pytest.raises(Refused, match="2 parcels where 1 are due"):
            await gathering.daemons[1].answer(question(parcels=(b"x", b"y")), "w0")


async def test_a_question_waits_no_longer_than_it_may() -> None:
    async with gathered(2, hold_s=0.02) as (gathering, _):
        answer = await gathering.daemons[1].answer(question(hold_s=3600.0), "w0")
        assert answer.parcels is None
        answer = await gathering.daemons[1].answer(question(generation=99, hold_s=3600.0), "w0")
        assert answer.parcels is None


async def test_a_newer_ring_takes_the_place_of_one_that_never_formed() -> None:
    async with gathered(3) as (gathering, trainers):
        for trainer in trainers[:2]:
            trainer.write()
        again = [Trainer(gathering.follow(rank, 2)) for rank in range(3)]
        assert len({trainer.place.rendezvous for trainer in [*trainers, *again]}) == 6
        for trainer in again:
            trainer.write()
        await all_know(again)
        await until(lambda: not asks())


async def test_orders_said_again_change_nothing() -> None:
    async with gathered(2) as (gathering, trainers):
        trainers[0].write()
        assert gathering.follow(0).rendezvous == trainers[0].place.rendezvous
        trainers[1].write()
        await all_know(trainers)


async def test_a_ring_that_is_over_is_not_opened_again() -> None:
    """The leader's orders tell of it until it has heard that all of its members sit."""
    async with gathered(2) as (gathering, trainers):
        gathering.daemons[0].end(1)
        assert gathering.follow(0).rendezvous == ""
        await until(lambda: trainers[0].rendezvous.stopped)


async def test_orders_without_a_ring_free_the_trainer() -> None:
    async with gathered(2) as (gathering, trainers):
        trainers[0].write()
        assert gathering.daemons[0].follow(orders(None, 2)) == ""
        await until(lambda: trainers[0].rendezvous.stopped and not asks())


async def test_a_daemon_that_was_started_anew_is_asked_where_it_listens_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.001)
    async with gathered(3) as (gathering, trainers):
        for trainer in trainers[:2]:
            trainer.write()
        await gathering.replace(2)
        await asyncio.sleep(0.02)  # they ask an address where nothing listens
        for rank in (0, 1):
            gathering.follow(rank)
        last = Trainer(gathering.follow(2))
        last.write()
        await all_know([*trainers[:2], last])


async def test_nothing_is_left_behind() -> None:
    before = asyncio.all_tasks()
    async with gathered(6) as (gathering, trainers):
        for trainer in trainers[:3]:
            trainer.write()
        await asyncio.sleep(0.01)
        for daemon in gathering.daemons:
            daemon.give_up()
    assert asyncio.all_tasks() == before
    await gathering.stop()


async def test_a_ring_that_is_prepared_is_the_one_that_is_planned_then() -> None:
    """Its addresses come beside a ring that trains. It stays open until it is adopted, or comes to nothing."""
    gathering = Gathering(["w0", "w1"], generation=1)
    place, _ = await gathering.open()
    daemon, quiet = gathering.daemons[0], orders(None, 2)
    daemon.end(1)
    place = msgspec.structs.replace(place, generation=2, rendezvous="")
    assert daemon.follow(msgspec.structs.replace(quiet, summons=Summons(1, ()))) == "", "its members have yet to meet"
    called = msgspec.structs.replace(quiet, summons=Summons(1, (), place))
    found = daemon.follow(called)
    assert found
    assert daemon.follow(called) == daemon.follow(orders(Assignment(place, 9, 1, prepared=True))) == found
    assert daemon.follow(msgspec.structs.replace(quiet, summons=Summons(2, ()))) == ""
    assert daemon.follow(called) == "", "no address of one attempt comes to another (I10)"
    await gathering.stop()


def test_a_trainer_hears_where_its_host_is_also_for_a_ring_that_it_prepares() -> None:
    place, keys = Place(2, 0, 2, "w0"), JobKeys(b"a secret of the job", "job")
    here = Here("eth0", "10.0.0.1", "127.0.0.1:1/x", keys)
    there = msgspec.structs.replace(
        place, interface="eth0", address="10.0.0.1", rendezvous="127.0.0.1:1/x", key=keys.of(2)
    )
    called = msgspec.structs.replace(orders(None), summons=Summons(1, (), place))
    assert located(called, here).summons == Summons(1, (), there)
    assert located(orders(Assignment(place, 9, 1)), here).assignment == Assignment(there, 9, 1)
    met = msgspec.structs.replace(orders(None), summons=Summons(1, ()))
    assert located(met, here) == met


def test_each_ring_has_a_key_of_its_own_which_no_other_job_has() -> None:
    keys = [
        JobKeys(b"secret", "a").of(1),
        JobKeys(b"secret", "a").of(2),
        JobKeys(b"secret", "b").of(1),
        JobKeys(b"x", "a").of(1),
    ]
    assert len(set(keys)) == 4
    assert JobKeys(b"secret", "a").of(1) == keys[0]


def test_what_is_prepared_stays_open_for_others_unless_it_failed() -> None:
    said = [
        TrainerStatus(phase=Phase.TRAINING, generation=2, prepared=(3, "")),
        TrainerStatus(phase=Phase.BROKEN, generation=2, reason="reset"),
        TrainerStatus(phase=Phase.TRAINING, generation=1, prepared=(2, "reset")),
        TrainerStatus(phase=Phase.READY, prepared=(2, "")),
    ]
    assert [through_with(one) for one in said] == [2, 2, 2, 0]
