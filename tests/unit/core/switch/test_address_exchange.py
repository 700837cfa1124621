"""Parcels of all members to all others, in few bundles."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from edl.core.switch.address_exchange import BRING, DIRECT, TRADE, Exchange, ExchangeRequest, Groups, errands, partners


def parcel(sender: int, receiver: int) -> bytes:
    return f"{sender}>{receiver}".encode()


def trade(size: int, source: random.Random) -> list[dict[int, bytes]]:
    """All members run their errands in any order, some twice, and the last one has nothing to bring until all others
    wait for it.
    """
    members = [Exchange(rank, size) for rank in range(size)]
    got: list[dict[int, bytes]] = [{} for _ in members]
    late = source.randrange(size)
    for rank in range(size):
        if rank != late:
            members[rank].begin([parcel(rank, other) for other in range(size)])
    to_run = [(rank, errand) for rank in range(size) for errand in members[rank].errands]
    while to_run:
        source.shuffle(to_run)
        left = []
        moved = False
        for rank, errand in to_run:
            asker, asked = members[rank], members[errand.rank]
            if not asker.stage:
                left.append((rank, errand))
                continue
            arrived = asked.receive(errand.kind, errand.part, asker.brings(errand))
            moved |= bool(arrived)
            assert not got[errand.rank].keys() & arrived.keys(), "each arrives once"
            got[errand.rank].update(arrived)
            given = asked.gives(errand.kind, errand.part)
            if given is None or source.random() < 0.1:  # an answer that is lost, too
                left.append((rank, errand))
            else:
                got[rank].update(asker.take(errand, given))
        if len(left) == len(to_run) and not moved:
            members[late].begin([parcel(late, other) for other in range(size)])
        to_run = left
    return got


@pytest.mark.parametrize("size", [*range(1, 20), 31, 64, 65, 200])
def test_each_gets_what_each_other_has_for_it(size: int) -> None:
    got = trade(size, random.Random(size))
    for rank in range(size):
        assert got[rank] == {sender: parcel(sender, rank) for sender in range(size) if sender != rank}


@pytest.mark.parametrize("size", [2, 3, 4, DIRECT - 1, DIRECT])
def test_in_a_small_ring_each_two_need_one_call(size: int) -> None:
    asked = [(rank, errand.rank) for rank in range(size) for errand in errands(rank, size)]
    assert len(asked) == size * (size - 1) // 2
    assert len({frozenset(pair) for pair in asked}) == len(asked)
    asks = Counter(rank for rank, _ in asked)
    assert max(asks.values()) <= size // 2, "none asks many more than the others"


@pytest.mark.parametrize("size", [9, 64, 100, 1000, 1024, 4095])
def test_each_member_asks_once_and_a_head_by_the_square_root_of_the_ring(size: int) -> None:
    asks = [len(errands(rank, size)) for rank in range(size)]
    asked = Counter(errand.rank for rank in range(size) for errand in errands(rank, size))
    groups = Groups(size)
    heads = {groups.head(group) for group in range(groups.count)}
    assert all((asks[rank], asked[rank]) == (1, 0) for rank in range(size) if rank not in heads)
    assert max(asks) <= size**0.5 / 2 + 1
    assert max(asked.values()) <= 1.5 * size**0.5 + 1
    assert sum(asks) <= 1.5 * size, "calls grow with the ring"


@pytest.mark.parametrize("size", [1, 2, 3, DIRECT, 9, 10, 64, 101])
def test_two_that_trade_know_each_other(size: int) -> None:
    pairs = {(rank, other) for rank in range(size) for other in partners(rank, size)}
    assert pairs == {(other, rank) for rank, other in pairs}
    asked = {frozenset((rank, errand.rank)) for rank in range(size) for errand in errands(rank, size)}
    assert asked == {frozenset(pair) for pair in pairs}


@pytest.mark.parametrize("size", [9, 64, 1000])
def test_the_first_rank_is_no_head(size: int) -> None:
    assert [errand.kind for errand in errands(0, size)] == [BRING]


def test_what_can_be_answered_is_told() -> None:
    """A daemon that waits looks again only then."""
    size = 9  # groups of three
    first, head = Exchange(0, size), Exchange(2, size)
    first.begin([b"x"] * size)
    head.begin([b"x"] * size)
    assert (first.stage, head.stage) == (1, 0)
    stages = []
    for kind, part in ((BRING, 0), (BRING, 1), (TRADE, 2)):
        head.receive(kind, part, [b"x"] * size)
        stages.append(head.stage)
    assert [errand.rank for errand in head.errands] == [5]
    assert head.gives(TRADE, 2) == (b"x",) * size
    assert head.gives(BRING, 0) is None
    head.take(head.errands[0], [b"x"] * size)
    assert [*stages, head.stage] == [0, 1, 1, 2]
    assert head.gives(BRING, 0) == (b"x",) * size


def test_what_no_member_sends_is_noticed() -> None:
    size = 10  # groups of 4, 4 and 2
    member, head = Exchange(0, size), Exchange(3, size)
    for one in (member, head):
        one.begin([b"x"] * size)
    for kind, part in ((-1, 0), (BRING, 0), (BRING, 1), (TRADE, 1), (2, 0)):
        with pytest.raises(ValueError, match="rank 0 of 10 is not asked"):
            member.receive(kind, part, [b"x"] * size)
    for kind, part in ((TRADE, 0), (TRADE, 3), (TRADE, -1), (BRING, 3), (BRING, 4)):
        with pytest.raises(ValueError, match="rank 3 of 10 is not asked"):
            head.receive(kind, part, [b"x"] * size)
    with pytest.raises(ValueError, match="1 parcels where 10 are due"):
        head.receive(BRING, 1, [b"x"])
    with pytest.raises(ValueError, match="10 parcels where 8 are due"):
        head.take(ExchangeRequest(TRADE, 0, 9), [b"x"] * 10)
    with pytest.raises(ValueError, match="9 parcels where 10 are due"):
        member.take(ExchangeRequest(BRING, 0, 3), [b"x"] * 9)
