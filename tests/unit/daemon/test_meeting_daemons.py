"""Daemons that are called to a next ring ask each other whether they are there."""

from __future__ import annotations

import asyncio

import pytest

from edl.daemon.roll_caller import RollCaller
from edl.errors import PeerError
from edl.protocol.assignment import Orders, Peer, Summons, Verdict
from edl.protocol.leader_messages import AskPresence


class Host:
    """One of several daemons, which call each other by name."""

    def __init__(self, name: str, others: dict[str, Host]) -> None:
        self.others, self.told = others, asyncio.Event()
        self.roll_caller = RollCaller(self, 0.05, 1.0, self.tell)  # type: ignore[arg-type]
        others[name] = self

    def tell(self) -> None:
        self.told.set()

    def keep_to(self, addresses: list[str]) -> None:
        assert set(addresses) <= self.others.keys()

    def caller(self, address: str) -> Host:
        return self.others[address]

    async def call(self, asked: AskPresence, _reply: type, *, term: int, deadline_s: float) -> object:
        assert (term, deadline_s) == (0, pytest.approx(1.05))
        if self.roll_caller is None:
            raise PeerError("it is gone")
        return await self.roll_caller.answer(asked)

    def hear(self, number: int, **peers: int) -> None:
        summons = Summons(number, tuple(Peer(rank, name) for name, rank in peers.items())) if number else None
        orders = Orders(1, number + 1, Verdict.STAY, "", 0, 0, 2, False, None, (), summons=summons)
        self.roll_caller.follow(orders)


@pytest.fixture
def hosts() -> dict[str, Host]:
    found: dict[str, Host] = {}
    for name in ("a", "b"):
        Host(name, found)
    return found


async def test_both_have_met_once_both_are_called(hosts: dict[str, Host]) -> None:
    a, b = hosts["a"], hosts["b"]
    a.hear(3, b=1)
    await asyncio.sleep(0)
    assert a.roll_caller.met == (3, 1)
    b.hear(3, a=0)
    async with asyncio.timeout(20):
        await asyncio.gather(a.told.wait(), b.told.wait())
    assert (a.roll_caller.met, b.roll_caller.met) == ((3,), (3,))
    for host in (a, b):
        await host.roll_caller.stop()


async def test_a_daemon_that_lost_its_trainer_is_not_there(hosts: dict[str, Host]) -> None:
    a, b = hosts["a"], hosts["b"]
    b.roll_caller.give_up()
    b.hear(3, a=0)
    a.hear(3, b=1)
    answer = await b.roll_caller.answer(AskPresence(3, 0.01))
    assert (answer.here, a.roll_caller.met, a.told.is_set()) == (False, (3, 1), False)
    a.hear(0)
    await a.roll_caller.stop()


async def test_a_daemon_with_none_to_ask_has_met_all_at_once(hosts: dict[str, Host]) -> None:
    hosts["a"].hear(1)
    assert (hosts["a"].roll_caller.met, hosts["a"].told.is_set()) == ((1,), True)
