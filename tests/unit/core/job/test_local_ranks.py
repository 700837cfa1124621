"""Who shares a host: local and cross ranks, and the order of the first ring."""

from __future__ import annotations

import random
from collections import Counter, defaultdict

from edl.core.job.local_ranks import Ranks, free_local_rank, grouped, ranks_of
from edl.protocol.record import Identity, Member, WorkerState


def members(*hosts: str) -> dict[str, Member]:
    """Workers w0, w1, ... on these hosts, registered in this order."""
    found: dict[str, Member] = {}
    for number, host in enumerate(hosts):
        join(found, f"w{number}", host)
    return found


def join(found: dict[str, Member], worker: str, host: str) -> None:
    identity = Identity(worker, host, f"10.0.0.{host}", 1, 2)
    local_rank = free_local_rank(found.values(), identity)
    found[worker] = Member(identity, WorkerState.JOINING, len(found) + 1, local_rank=local_rank)


def test_ranks_go_host_by_host_and_hosts_by_their_first_workers() -> None:
    known = members("b", "a", "b", "c", "a")
    assert grouped(list(known), known) == ("w0", "w2", "w1", "w4", "w3")


def test_seats_in_horovods_words() -> None:
    known = members("a", "b", "a", "b", "c")
    ranks = ranks_of(grouped(list(known), known), known)
    assert ranks == {
        "w0": Ranks(rank=0, local_rank=0, local_size=2, cross_rank=0, cross_size=3),
        "w2": Ranks(rank=1, local_rank=1, local_size=2, cross_rank=0, cross_size=2),
        "w1": Ranks(rank=2, local_rank=0, local_size=2, cross_rank=1, cross_size=3),
        "w3": Ranks(rank=3, local_rank=1, local_size=2, cross_rank=1, cross_size=2),
        "w4": Ranks(rank=4, local_rank=0, local_size=1, cross_rank=2, cross_size=3),
    }


def test_a_local_rank_is_kept_for_life_and_what_gets_free_is_given_again() -> None:
    known = members("a", "a", "b")
    del known["w0"]
    assert ranks_of(["w1", "w2"], known)["w1"] == Ranks(0, 1, 1, 0, 1)
    join(known, "w3", "a")
    ranks = ranks_of(["w1", "w2", "w3"], known)
    assert (ranks["w1"].local_rank, ranks["w3"].local_rank) == (1, 0)


def slotted(worker: str, slot: str) -> Identity:
    return Identity(worker, "a", "10.0.0.a", 1, 2, driver_slot=slot)


def test_horovodrun_numbers_its_slots_itself() -> None:
    known = [Member(slotted(f"w{n}", f"a:{n}"), WorkerState.LEAVING, n, local_rank=n) for n in range(2)]
    assert free_local_rank(known, slotted("w2", "a:1")) == 1  # given anew, while its last worker is about to leave


def test_horovodrun_may_know_a_host_by_two_names() -> None:
    known = [Member(slotted("w0", "localhost:0"), WorkerState.TRAINING, 1, local_rank=0)]
    assert free_local_rank(known, slotted("w1", "127.0.0.1:0")) == 1


def test_machines_of_one_name_are_told_apart_by_their_addresses() -> None:
    one, other = Identity("w0", "localhost", "10.0.0.1", 1, 2), Identity("w1", "localhost", "10.0.0.2", 1, 2)
    assert free_local_rank([Member(one, WorkerState.JOINING, 1)], other) == 0


def test_who_is_no_member_any_more_passes_for_a_host_of_its_own() -> None:
    known = members("a", "a")
    ranks = ranks_of(["w0", "gone", "w1"], known)
    assert ranks["gone"] == Ranks(1, 0, 1, 1, 2)
    assert ranks["w1"].local_size == 2


def test_whatever_comes_and_goes_local_ranks_differ_on_each_host_and_cross_ranks_count_up() -> None:
    dice = random.Random(0)
    known: dict[str, Member] = {}
    for turn in range(300):
        if known and dice.random() < 0.45:
            del known[dice.choice(list(known))]
        else:
            join(known, f"w{turn}", dice.choice("abcd"))
        ranks = ranks_of(list(known), known)
        sizes = Counter(known[worker].identity.host for worker in known)
        across: defaultdict[int, list[int]] = defaultdict(list)
        for worker, seat in ranks.items():
            across[seat.local_rank].append(seat.cross_rank)
            assert seat.local_size == sizes[known[worker].identity.host]
            assert seat.cross_size == sum(other.local_rank == seat.local_rank for other in ranks.values())
        assert len({(known[worker].identity.host, seat.local_rank) for worker, seat in ranks.items()}) == len(known)
        assert all(ranks == list(range(len(ranks))) for ranks in across.values())
