"""Parcels of all members to all others, in few bundles."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from edl.core.exchange import Errand, Exchange, errands


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
            bundle = members[errand.rank].bundle(errand.round, errand.digit)
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


@pytest.mark.parametrize("size", [2, 3, 4])
def test_in_a_small_ring_each_asks_each_at_once(size: int) -> None:
    assert {(errand.round, errand.rank) for errand in errands(1, size)} == {(0, rank) for rank in range(size)} - {
        (0, 1)
    }


def test_calls_and_parcels_of_one_member_grow_hardly_faster_than_the_ring() -> None:
    calls, carried = {}, {}
    for size in (256, 1024, 4096):
        member = Exchange(0, size)
        member.begin([b""] * size)
        calls[size] = len(errands(0, size))
        carried[size] = sum(len(list(member._ways(one.round, one.digit))) for one in member.errands)
    assert calls == {256: 8, 1024: 10, 4096: 12}
    assert carried == {size: size // 2 * calls[size] for size in calls}, "n log n"


def test_nobody_is_asked_by_more_than_others() -> None:
    asked = Counter(errand.rank for rank in range(1000) for errand in errands(rank, 1000))
    assert set(asked.values()) == {len(errands(0, 1000))}


def test_what_no_member_sends_is_noticed() -> None:
    member = Exchange(0, 6)
    member.begin([b"x"] * 6)
    for number, digit in ((-1, 1), (2, 1), (0, 0), (0, 4)):
        with pytest.raises(ValueError, match="no bundle"):
            member.bundle(number, digit)
    with pytest.raises(ValueError, match="1 parcels in a bundle of 2"):
        member.take(Errand(0, 1, 5), [b"x"])
