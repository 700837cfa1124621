"""Parcels of all members to all others, in few bundles."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from edl.core.switch.exchange import DIRECT, GATHER, HAND_OUT, TRADE, Errand, Exchange, Groups, errands


def parcel(sender: int, receiver: int) -> bytes:
    return f"{sender}>{receiver}".encode()


def trade(size: int, source: random.Random) -> list[dict[int, bytes]]:
    """All members run their errands in any order, and the last one has nothing to give until all others wait for it."""
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
        for rank, errand in to_run:
            bundle = members[errand.rank].bundle(errand.round, errand.part)
            if bundle is None:
                left.append((rank, errand))
            else:
                got[rank].update(members[rank].take(errand, bundle))
        if len(left) == len(to_run):
            members[late].begin([parcel(late, other) for other in range(size)])
        to_run = left
    return got


@pytest.mark.parametrize("size", [*range(1, 20), 31, 64, 65, 200])
def test_each_gets_what_each_other_has_for_it(size: int) -> None:
    got = trade(size, random.Random(size))
    for rank in range(size):
        assert got[rank] == {sender: parcel(sender, rank) for sender in range(size) if sender != rank}


@pytest.mark.parametrize("size", [2, 3, DIRECT])
def test_in_a_small_ring_each_asks_each_at_once(size: int) -> None:
    asked = {(errand.round, errand.rank) for errand in errands(1, size)}
    assert asked == {(TRADE, rank) for rank in range(size)} - {(TRADE, 1)}


@pytest.mark.parametrize("size", [9, 64, 100, 1000, 1024, 4095])
def test_each_member_asks_once_and_a_head_by_the_square_root_of_the_ring(size: int) -> None:
    asks = [len(errands(rank, size)) for rank in range(size)]
    asked = Counter(errand.rank for rank in range(size) for errand in errands(rank, size))
    groups = Groups(size)
    heads = {groups.head(group) for group in range(groups.count)}
    assert all(asks[rank] == asked[rank] == 1 for rank in range(size) if rank not in heads)
    assert max(asks) <= 2 * size**0.5
    assert max(asked.values()) <= 2 * size**0.5
    assert sum(asks) <= 3 * size, "calls grow with the ring"


@pytest.mark.parametrize("size", [9, 64, 1000])
def test_the_first_rank_is_no_head(size: int) -> None:
    assert [errand.round for errand in errands(0, size)] == [HAND_OUT]


def test_what_can_be_answered_is_told() -> None:
    """A daemon that waits looks again only then."""
    size = 9
    first, head = Exchange(0, size), Exchange(2, size)
    assert first.here == head.here == GATHER
    first.begin([b"x"] * size)
    head.begin([b"x"] * size)
    assert first.here == head.here == TRADE
    seen = []
    for errand in head.errands:
        head.take(errand, [b"x"] * size)
        seen.append(head.here)
    assert seen == [TRADE, HAND_OUT, HAND_OUT, HAND_OUT + 1]


def test_what_no_member_sends_is_noticed() -> None:
    size = 10  # groups of 4, 4 and 2
    member, head = Exchange(0, size), Exchange(3, size)
    for one in (member, head):
        one.begin([b"x"] * size)
    for number, part in ((-1, 0), (GATHER, 1), (TRADE, 1), (HAND_OUT, 1), (3, 0)):
        with pytest.raises(ValueError, match="rank 0 of 10 has no bundle"):
            member.bundle(number, part)
    for number, part in ((GATHER, 0), (TRADE, 0), (TRADE, 3), (TRADE, -1), (HAND_OUT, 3), (HAND_OUT, 4)):
        with pytest.raises(ValueError, match="rank 3 of 10 has no bundle"):
            head.bundle(number, part)
    with pytest.raises(ValueError, match="1 parcels in a bundle of 10"):
        head.take(Errand(GATHER, 0, 1), [b"x"])
    with pytest.raises(ValueError, match="10 parcels in a bundle of 8"):
        head.take(Errand(TRADE, 0, 9), [b"x"] * 10)
