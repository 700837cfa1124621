"""Rings of torch's process groups: several members in one process, as nothing of such a ring is global to it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import ring_members
import torch
from ring_members import SIZE, Gatherings, Members
from seen_server import listening

from edl.errors import RingBroken
from edl.protocol.assignment import Place, solo
from edl.torch.process_groups import LOOK_S, ProcessGroups
from edl.torch.torch_ring import GroupForming, GroupRing


@pytest.fixture
def gatherings() -> Iterator[Gatherings]:
    gatherings = Gatherings()
    yield gatherings
    gatherings.close()


@pytest.fixture
def members(gatherings: Gatherings) -> Iterator[Members]:
    members = Members(gatherings)
    yield members
    for ring in members.rings:
        ring.abort()
        ring.leave()


def test_bytes_and_numbers(members: Members) -> None:
    members.enter(1)
    assert members.largest() == [[2]] * SIZE
    assert members.all(lambda ring, rank: ring.same(2**64 - 1)()) == [True] * SIZE
    assert members.all(lambda ring, rank: ring.same(min(rank, 1))()) == [False] * SIZE
    payload = b""

    def told(ring: GroupRing, rank: int) -> bytes:
        return ring.broadcast(payload if rank == 1 else None, 1)

    for payload in (b"", b"a few", b"many" * 5000):
        assert members.all(told) == [payload] * SIZE
    assert [ring.place.generation for ring in members.rings] == [1] * SIZE


def test_a_ring_of_one_needs_no_other() -> None:
    ring = GroupRing()
    ring.enter(solo("w0"), 1.0)
    assert (ring.largest([3]), ring.same(3)(), ring.broadcast(b"x", 0), ring.size) == ([3], True, b"x", 1)
    ring.leave()
    assert (ring.place, ring.size) == (None, 0)
    with pytest.raises(RingBroken, match="in no ring"):
        ring.largest([1])


def test_the_next_ring_is_prepared_while_this_one_works(members: Members) -> None:
    members.enter(1)
    places = members.gatherings.places(2)
    assert all(ring.prepares for ring in members.rings)
    preparing = [
        threading.Thread(target=ring.prepare, args=(place, 20.0), kwargs={"all_prepare": True})
        for ring, place in zip(members.rings, places, strict=True)
    ]
    preparing[0].start()
    assert members.largest() == [[2]] * SIZE  # one of three has begun
    for thread in preparing[1:]:
        thread.start()
    for thread in preparing:
        thread.join()
    assert members.largest() == [[2]] * SIZE
    for ring in members.rings:
        assert ring.place.generation == 1
        ring.adopt(2)
        assert ring.place.generation == 2
    assert members.largest() == [[2]] * SIZE


def test_who_leaves_first_takes_nothing_away(members: Members) -> None:
    """Each is through with its last collective at another time.

    Two members: a third one's connection to the second would count for the first one's own, as all are in one process.
    """
    tensors = [torch.ones(2_000_000) for _ in range(2)]
    for generation in range(1, 9):
        members.enter(generation, 2)

        def reduce_and_leave(ring: GroupRing, rank: int) -> None:
            groups = ring.groups
            groups.wait(groups.begun(groups.gradients.allreduce([tensors[rank].fill_(rank + 1.0)])))
            ring.leave()

        assert members.all(reduce_and_leave, members.rings[:2]) == [None] * 2
        assert all(tensor.eq(3).all() for tensor in tensors)


def test_a_ring_that_formed_as_its_waiting_was_interrupted_is_ended(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Ctrl-C: no worker sits in it, so none would leave it."""
    begun: list[GroupForming] = []
    wait = GroupForming.wait

    def interrupted(attempt: GroupForming) -> None:
        wait(attempt)
        begun.append(attempt)
        raise KeyboardInterrupt

    monkeypatch.setattr(GroupForming, "wait", interrupted)
    places = members.gatherings.places(1, 2)
    raised = members.all(lambda ring, rank: ring.enter(places[rank], 20.0), members.rings[:2])
    assert [type(one) for one in raised] == [KeyboardInterrupt] * 2
    for attempt in begun:
        attempt.thread.join(10)
    assert len(begun) == 2 and not any(attempt.thread.is_alive() for attempt in begun)


def test_a_member_that_is_slow_while_a_ring_forms_is_waited_for(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not all connections are there yet when the others look whether one was closed."""
    of_all = ProcessGroups.of_all

    def slow(groups: ProcessGroups, mine: bytes) -> list[bytes]:
        if groups.place.rank == 0:
            time.sleep(3 * LOOK_S)
        return of_all(groups, mine)

    monkeypatch.setattr(ProcessGroups, "of_all", slow)
    members.enter(1)
    assert members.largest() == [[2]] * SIZE


def test_who_goes_on_in_a_ring_that_others_have_left_learns_of_it_at_once(members: Members) -> None:
    members.enter(1)
    for ring in members.rings[1:]:
        ring.leave()
    began = time.monotonic()
    with pytest.raises(RingBroken, match="collective of generation 1 failed"):
        members.rings[0].largest([1])
    assert time.monotonic() - began < 5


def test_what_was_prepared_can_be_dropped_or_replaced(members: Members) -> None:
    members.enter(1)
    members.prepare(2)
    for ring in members.rings:
        ring.release(2)
        ring.release(2)
        with pytest.raises(RingBroken, match="ring 2 was not prepared, or has failed since"):
            ring.adopt(2)
    members.prepare(3)
    members.prepare(4)
    for ring in members.rings:
        with pytest.raises(RingBroken, match="ring 3 was not prepared, or has failed since"):
            ring.adopt(3)
        ring.adopt(4)
    assert members.largest() == [[2]] * SIZE


def test_preparing_is_given_up(members: Members) -> None:
    """By `release` or by an abort of that generation: no thread waits for a member that does not come."""
    members.enter(1)
    for generation, end in ((2, lambda ring: ring.release(2)), (4, lambda ring: ring.abort(range(3, 5)))):
        places = members.gatherings.places(generation)

        def prepare(ring: GroupRing, rank: int, places: list[Place] = places) -> None:
            ring.prepare(places[rank], 60.0, all_prepare=True)

        timers = [threading.Timer(0.2, end, [ring]) for ring in members.rings[:2]]
        for timer in timers:
            timer.start()
        errors = members.all(prepare, members.rings[:2])
        assert all("the ring did not form: it " in str(error) for error in errors), errors
        assert members.largest() == [[2]] * SIZE


def test_a_prepared_ring_that_was_aborted_is_not_adopted(members: Members) -> None:
    members.enter(1)
    members.prepare(2)
    members.rings[0].abort(range(2, 3))
    for ring in members.rings:  # the others see it at their connections
        with pytest.raises(RingBroken, match="ring 2 was not prepared, or has failed since"):
            ring.adopt(2)
    assert members.largest() == [[2]] * SIZE


def test_an_abort_frees_all_that_wait_in_that_ring_and_in_no_other(members: Members) -> None:
    members.enter(5)
    first = members.rings[0]
    first.abort(range(1, 5))  # late, of rings before
    assert members.largest() == [[2]] * SIZE
    timer = threading.Timer(0.2, first.abort, [range(1, 6)])
    timer.start()
    errors = members.all(lambda ring, rank: ring.largest([rank]), members.rings[1:])  # without the first one
    assert all(isinstance(error, RingBroken) for error in errors), errors
    assert all(ring.is_failure(error) for ring, error in zip(members.rings[1:], errors, strict=True))
    members.enter(6)
    assert members.largest() == [[2]] * SIZE


def test_members_that_are_not_told_learn_of_the_end_from_their_connections(members: Members) -> None:
    """gloo forgets who waits for a message in whose middle a connection ends: about one in six here."""
    tensors = [torch.ones(4_000_000) for _ in range(2)]
    for generation in range(1, 9):
        rings = members.rings[:2]
        members.enter(generation, 2)

        def pump(ring: GroupRing, rank: int) -> None:
            while True:
                ring.groups.wait(ring.groups.begun(ring.groups.gradients.allreduce([tensors[rank]])))

        timer = threading.Timer(0.05, rings[0].abort)
        timer.start()
        errors = members.all(pump, rings)
        assert all(isinstance(error, RingBroken) for error in errors), errors


def test_gradients_of_all_kinds_are_averaged_alike_on_all(members: Members) -> None:
    """Large ones where they lie, small ones together, sparse ones; laid out otherwise on each worker."""
    members.enter(1)
    shapes = [(16, 8, 64, 64), (3, 2), (2, 2, 2, 2), (5, 3)]
    parameters = [[torch.nn.Parameter(torch.zeros(shape)) for shape in shapes] for _ in range(SIZE)]
    for own in parameters:
        own.append(torch.nn.Parameter(torch.zeros(7, dtype=torch.bfloat16)))
    averaging = [ring.averaging() for ring in members.rings]
    factors = [1.5, 0.0, 1.5]

    def gradient(rank: int, place: int, step: int) -> torch.Tensor:
        shape = parameters[rank][place].shape
        dense = torch.full(shape, float("nan") if factors[rank] == 0 else rank + 1.0 + place, dtype=torch.float32)
        if place == 3:
            rows = torch.zeros(shape) if step and rank else dense
            return rows.to_sparse(1) if not (step and rank == 2) else rows
        if len(shape) == 4 and rank:
            return dense.contiguous(memory_format=torch.channels_last)
        return dense.to(parameters[rank][place].dtype)

    step = 0

    def reduce(ring: GroupRing, rank: int) -> list[torch.Tensor]:
        mine, own = averaging[rank], parameters[rank]
        mine.expect(own)
        for place in (4, 3, 1, 0, 2) if rank else (0, 1, 2, 3, 4):
            own[place].grad = found = gradient(rank, place, step)
            mine.begin(own[place], found, str(place), factors[rank])
        mine.flush()
        mine.wait()
        mine.drop()
        return [parameter.grad.to_dense() for parameter in own]

    for step in range(3):
        first, *others = members.all(reduce)
        for other in others:
            assert all(torch.equal(one, its) for one, its in zip(first, other, strict=True))
        expected = [(1.0 + place) * 0.5 + (3.0 + place) * 0.5 for place in range(5)]
        expected[3] = 2.0 if step else expected[3]
        for place, found in enumerate(first):
            torch.testing.assert_close(found, torch.full_like(found, expected[place]))


def test_a_ring_that_stands_takes_no_connection(members: Members) -> None:
    before = listening(os.getpid())
    members.enter(1)
    new = listening(os.getpid()) - before  # the members', and the server at which they meet
    assert sum(map(times_out, new)) == SIZE
    assert members.largest() == [[2]] * SIZE


def times_out(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, timeout=0.2).close()
    except TimeoutError:
        return True
    return False


def test_only_connections_of_the_ring_are_cut(members: Members) -> None:
    members.enter(1)
    groups = members.rings[0].groups
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as mine:
        accepted, _ = server.accept()
        with accepted:
            groups.give_up("a test")
            errors = members.all(lambda ring, rank: ring.largest([rank]))
            assert all(isinstance(error, RingBroken) for error in errors), errors
            mine.sendall(b"x")
            assert accepted.recv(1) == b"x"


ENDING = """
import threading, torch
from edl.protocol.assignment import Place
from edl.torch.torch_ring import GroupForming
from edl.torch.torch_ring import GroupRing
from ring_members import Gatherings
gatherings = Gatherings()
rings = [GroupRing() for _ in range(2)]
for generation in range(1, 7):
    places = gatherings.places(generation, 2)
    entering = [threading.Thread(target=ring.enter, args=(place, 20.0)) for ring, place in zip(rings, places)]
    [thread.start() for thread in entering], [thread.join() for thread in entering]
    all_groups = [ring.groups for ring in rings]
    works = [groups.begun(groups.gradients.allreduce([torch.ones(4_000_000)])) for groups in all_groups]
    rings[0].abort()
    [ring.leave() for ring in rings]
places = gatherings.places(9, 3)
threading.Thread(target=rings[0].enter, args=(places[0], 20.0), daemon=True).start()
gatherings.close()
"""


@pytest.mark.slow
@pytest.mark.integration  # a dozen seconds of processes that import PyTorch: not for scripts/check
def test_a_process_ends_well_whatever_its_rings_were_at() -> None:
    """In the middle of an operation that gloo has forgotten, or of forming."""
    folder = Path(ring_members.__file__).parent
    path = os.pathsep.join([str(Path(__file__).parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", ENDING], cwd=folder, env={**os.environ, "PYTHONPATH": path}, check=False
    )
    assert done.returncode == 0
