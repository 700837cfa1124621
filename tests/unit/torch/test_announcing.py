"""The script's own collectives in a ring of process groups: by name, in any order, and errors where workers differ."""

from __future__ import annotations

import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from ring_members import SIZE, Gatherings, Members

from edl.errors import CollectiveRefused, RingBroken, UsageError
from edl.protocol.assignment import solo
from edl.torch import announcing
from edl.torch import group_collectives as act
from edl.torch.announcing import ROOM_BYTES
from edl.torch.group_collectives import CollectiveCall, Handle, Op
from edl.torch.process_groups import ProcessGroups
from edl.torch.torch_ring import SHORT_BYTES, GroupRing


@pytest.fixture
def members() -> Iterator[Members]:
    gatherings = Gatherings()
    members = Members(gatherings)
    members.enter(1)
    yield members
    for ring in members.rings:
        ring.abort()
        ring.leave()
    gatherings.close()


def begun(ring: GroupRing, tensor: torch.Tensor, name: str | None = None, op: Op = Op.Sum) -> Handle:
    return act.reduce(ring.groups, tensor, torch.empty_like(tensor), op, (1.0, 1.0), CollectiveCall("allreduce", name))


def refused(members: Members, act_on: Callable[[GroupRing, int], Any], *words: str) -> None:
    """All members raise the same line, with these words; then the ring works on."""
    errors = members.all(act_on)
    assert all(isinstance(error, CollectiveRefused) for error in errors), errors
    assert len({str(error) for error in errors}) == 1
    assert all(word in str(errors[0]) for word in words), errors[0]
    assert members.all(lambda ring, rank: begun(ring, torch.ones(2)).result().tolist()) == [[SIZE, SIZE]] * SIZE
    assert members.largest() == [[2]] * SIZE


def test_by_name_in_another_order_on_each(members: Members) -> None:
    names = [f"gradient {number}" for number in range(40)]

    def reduce(ring: GroupRing, rank: int) -> dict[str, float]:
        order = random.Random(rank).sample(names, len(names))
        handles = {name: begun(ring, torch.full((3,), float(names.index(name)) + rank), name) for name in order}
        waited = random.Random(-rank).sample(names, len(names))
        return {name: float(handles[name].result()[0]) for name in waited}

    expected = {name: 3.0 * number + 3.0 for number, name in enumerate(names)}
    assert members.all(reduce) == [expected] * SIZE


def test_more_is_begun_at_once_than_a_round_has_room_for(members: Members) -> None:
    names = ["n" * 300 + str(number) for number in range(ROOM_BYTES // 50)]

    def reduce(ring: GroupRing, rank: int) -> set[float]:
        handles = [begun(ring, torch.ones(1), name) for name in names]
        return {float(handle.result()) for handle in handles}

    assert members.all(reduce) == [{float(SIZE)}] * SIZE


def test_edl_s_own_words_come_after_what_was_begun(members: Members) -> None:
    """Whether a member has looked at it before or not: operations of a group pair up by their order alone."""

    def reduce(ring: GroupRing, rank: int) -> tuple[float, list[int]]:
        handle = begun(ring, torch.ones(1), "a")
        while rank == 1 and not handle.is_done():
            pass
        if rank == 2:
            handle.result()
        return ring.largest([rank])[0], handle.result().tolist()

    assert members.all(reduce) == [(2, [SIZE])] * SIZE


def test_polling_brings_it_about(members: Members) -> None:
    def reduce(ring: GroupRing, rank: int) -> list[float]:
        if rank:
            return begun(ring, torch.ones(1)).result().tolist()
        handle = begun(ring, torch.ones(1))
        while not handle.is_done():
            pass
        return handle.result().tolist()

    assert members.all(reduce) == [[float(SIZE)]] * SIZE


def test_rows_may_differ_in_number(members: Members) -> None:
    def gathered(ring: GroupRing, rank: int) -> tuple[list[float], list[int]]:
        found, counts = act.gather(ring.groups, torch.full((rank, 1), float(rank))).result()
        return found.flatten().tolist(), counts

    assert members.all(gathered) == [([1.0, 2.0, 2.0], [0, 1, 2])] * SIZE

    def exchanged(ring: GroupRing, rank: int) -> tuple[list[float], list[int]]:
        splits = [(rank + to) % 2 for to in range(SIZE)]
        found, counts = act.all_to_all(ring.groups, torch.full((sum(splits),), float(rank)), splits).result()
        return found.tolist(), counts.tolist()

    assert members.all(exchanged) == [([1.0], [0, 1, 0]), ([0.0, 2.0], [1, 0, 1]), ([1.0], [0, 1, 0])]


def test_types_shapes_operations_and_roots_that_differ(members: Members) -> None:
    first = torch.ones(3, 4)
    refused(members, lambda ring, rank: begun(ring, first.int() if rank else first, "x").result(), "'x'", "int32")
    refused(members, lambda ring, rank: begun(ring, first.T if rank else first).result(), "[3, 4]", "[4, 3]")
    refused(members, lambda ring, rank: begun(ring, torch.ones(3 + rank)).result(), "[3]", "[4]", "rank 1")
    refused(members, lambda ring, rank: begun(ring, first, op=Op(rank)).result(), "Average", "Sum")
    refused(members, lambda ring, rank: act.broadcast(ring.groups, first, rank).result(), "root_rank 0", "root_rank 1")
    refused(members, lambda ring, rank: act.gather(ring.groups, torch.ones(2, 3 + rank)).result(), "rows of shape [3]")
    refused(members, lambda ring, rank: act.all_to_all(ring.groups, torch.ones(SIZE, 1 + rank), None).result(), "[2]")


def test_other_collectives_on_each_are_no_endless_wait(members: Members) -> None:
    refused(
        members, lambda ring, rank: begun(ring, torch.ones(1), f"of rank {rank}").result(), "rank 2 for", "'of rank 0'"
    )
    refused(
        members,
        lambda ring, rank: (
            act.agreed(ring.groups, CollectiveCall("barrier"), "") if rank else begun(ring, torch.ones(1)).result()
        ),
        "rank 0 for allreduce (float32 [1], Sum)",
        "rank 1 for barrier",
    )


def test_a_name_that_is_under_way_is_not_begun_again(members: Members) -> None:
    """As Horovod's own test has it: one member after the other."""

    def twice(ring: GroupRing, rank: int) -> str:
        first = begun(ring, torch.ones(1), "twice")
        with pytest.raises(UsageError, match="allreduce 'twice': one of this name is under way"):
            begun(ring, torch.ones(1), "twice")
        return str(float(first.result()))

    assert members.all(twice) == [str(float(SIZE))] * SIZE

    def again(ring: GroupRing, rank: int) -> list[float]:
        return [float(begun(ring, torch.ones(1), "twice").result()) for _ in range(200)]

    assert members.all(again) == [[float(SIZE)] * 200] * SIZE


def test_names_of_what_is_through_are_not_kept(members: Members) -> None:
    def many(ring: GroupRing, rank: int) -> int:
        handles = weakref.WeakSet[Handle]()
        for number in range(300):
            handle = begun(ring, torch.ones(1), str(number))
            handle.result()
            handles.add(handle)
        return len(handles)

    assert all(kept < 100 for kept in members.all(many))


def test_what_was_begun_in_a_ring_that_is_left_never_comes(members: Members) -> None:
    ring = members.rings[0]
    handle = begun(ring, torch.ones(1), "alone")
    for one in members.rings:
        one.abort()
        one.leave()
    with pytest.raises(RingBroken):
        handle.result()


def test_a_ring_of_one_tells_nobody() -> None:
    ring = GroupRing()
    ring.enter(solo("w0"), 1.0)
    assert begun(ring, torch.ones(2), "a").result().tolist() == [1.0, 1.0]
    found, counts = act.gather(ring.groups, torch.ones(2)).result()
    assert (found.tolist(), counts) == ([1.0, 1.0], [2])
    ring.leave()


def test_gradients_that_differ_are_named_before_the_first_bucket(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing is compared in the steps after it, in the same ring."""
    averaging = [ring.averaging() for ring in members.rings]
    differing: list[tuple[list[list[tuple[int, ...]]], tuple[str, ...]]] = [
        (
            [[(3, 4), (3,)], [(3, 4), (4,)], [(3, 4), (3,)]],
            ("parameter 2 is float32 [3] on rank 0", "float32 [4] on rank 1"),
        ),
        ([[(3, 4), (3,)], [(3, 4), (3,)], [(3, 4)]], ("2 parameters on rank 0, 1 on rank 2",)),
    ]

    def reduce(ring: GroupRing, rank: int) -> int:
        mine, own = averaging[rank], parameters[rank]
        mine.expect(own)
        for parameter in own:
            mine.begin(parameter, torch.ones_like(parameter), "", 1.0)
        mine.flush()
        mine.wait()
        mine.drop()
        return len(ring.groups._under_way)

    for shapes, words in differing:
        parameters = [[torch.nn.Parameter(torch.zeros(shape)) for shape in own] for own in shapes]
        errors = members.all(reduce)
        assert all(isinstance(error, CollectiveRefused) for error in errors), errors
        assert all(word in str(error) for error in errors for word in words), errors
    parameters = [[torch.nn.Parameter(torch.zeros(3))] for _ in range(SIZE)]
    assert members.all(reduce) == [0] * SIZE

    def fails(*_: Any) -> Any:
        raise AssertionError("a usual step compares nothing")

    monkeypatch.setattr(ProcessGroups, "of_all_begun", fails)
    assert members.all(reduce) == [0] * SIZE


def test_two_threads_at_once_are_told_to_be_one(members: Members) -> None:
    told = threading.Barrier(SIZE)

    def second(ring: GroupRing, rank: int) -> list[float]:
        if rank == 0:  # for which the others wait
            told.wait(30)
            return begun(ring, torch.ones(1), "loss").result().tolist()
        with ThreadPoolExecutor(1) as another:
            first = another.submit(lambda: begun(ring, torch.ones(1), "loss").result().tolist())
            while not ring.groups.awaits():
                time.sleep(0.01)
            with pytest.raises(UsageError, match="in one thread"):
                begun(ring, torch.ones(1), "metric")
            told.wait(30)
            return first.result(30)

    assert members.all(second) == [[SIZE]] * SIZE


def test_who_polls_for_what_another_one_never_calls_is_seen_to_wait_in_vain(members: Members) -> None:
    """Rounds go on beside that, as often as it polls: none of them brings a collective closer."""

    def turn(ring: GroupRing, rank: int) -> list[Any]:
        groups = ring.groups
        handle, pulses = begun(ring, torch.ones(1), f"of rank {rank}"), []
        for _ in range(20):
            assert not handle.is_done()
            pulses.append(groups.pulse())
        return [len(set(pulses)), pulses[0] and pulses[0].waiting, groups.awaits()]

    assert members.all(turn) == [[1, 1, f"allreduce 'of rank {rank}'"] for rank in range(SIZE)]


def test_who_has_begun_one_and_computes_on_waits_for_nothing(members: Members, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcing, "POLLS_S", 0.0)

    def turn(ring: GroupRing, rank: int) -> list[Any]:
        handle = begun(ring, torch.ones(1), f"of rank {rank}")
        handle.is_done()
        pulse = ring.groups.pulse()
        return [pulse and pulse.waiting, ring.groups.awaits()]

    assert members.all(turn) == [[0, ""]] * SIZE


def test_who_polls_in_a_ring_that_is_given_up_is_told(members: Members) -> None:
    handles = members.all(lambda ring, rank: begun(ring, torch.ones(1), f"of rank {rank}"))
    members.all(lambda ring, rank: ring.abort())
    errors = members.all(lambda ring, rank: handles[rank].is_done())
    assert all(isinstance(error, RingBroken) for error in errors), errors


@pytest.mark.parametrize("length", [0, 3, SHORT_BYTES, SHORT_BYTES + 1, 5000])
def test_bytes_of_all_members_have_any_length(members: Members, length: int) -> None:
    said = [b"", b"x" * length, b"y" * 7]
    assert members.all(lambda ring, rank: ring.gathered(said[rank], "all_gather")) == [said] * SIZE


@pytest.mark.parametrize(
    "meets",
    [
        lambda ring: ring.largest([0, 1, 2, 3, 4]),
        lambda ring: ring.broadcast_begun(torch.ones(10), 0, "buffers")(),
        lambda ring: ring.broadcast(b"x" if ring.place.rank == 0 else None, 0),
        lambda ring: ring.mean(torch.ones(500), "loss"),
    ],
    ids=["an agreement", "buffers", "a message", "a mean"],
)
def test_a_member_that_gathers_alone_meets_nothing_of_the_others(members: Members, meets: Any) -> None:
    """gloo ends a process in which two operations of other sizes meet; here one waits for the other."""

    def act_alone(ring: GroupRing, rank: int) -> Any:
        if rank:
            return meets(ring)
        cut = threading.Timer(1.0, lambda: (told.append(ring.awaits()), [one.abort() for one in members.rings]))
        cut.start()
        try:
            return ring.gathered(b"", "all_reduce")
        finally:
            cut.join()

    told = list[str]()
    found = members.all(act_alone)
    assert isinstance(found[0], RingBroken) and told == ["all_reduce"], found
