"""Gradients on GPUs: who may sum them up there, and what becomes of it where a member does not come.

A GPU is stood in for by a thread of the host that adds up; `benchmarks.gpu` is where real ones are.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from ring_members import SIZE, Gatherings, Members
from torch.distributed.distributed_c10d import PrefixStore

from edl.errors import RingBroken
from edl.protocol.assignment import Place
from edl.torch.nccl_sums import NO_GPU, Gpu, each_has_its_own, prepare_groups
from edl.torch.torch_ring import GroupRing

__all__ = ["gatherings"]

PATIENCE_S = 20.0
HOST = torch.device("cpu")


@dataclass
class Adding:
    """All that the members of one ring add up, by the number of the operation."""

    size: int
    said: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    turn: threading.Condition = field(default_factory=threading.Condition)
    aborted: set[int] = field(default_factory=set)

    def add(self, number: int, rank: int, tensor: torch.Tensor) -> bool:
        """False: a member has aborted."""
        with self.turn:
            those = self.said.setdefault(number, [])
            those.append(tensor.clone())  # another may have its sum before this member looks
            self.turn.notify_all()
            self.turn.wait_for(lambda: len(those) == self.size or rank in self.aborted)
            if len(those) < self.size:
                return False
            tensor.copy_(torch.stack(those).sum(0))
        return True


ADDING: dict[bytes, Adding] = {}
HINDER: dict[int, Callable[[], None]] = {}  # what comes before the connection of each rank


@pytest.fixture(autouse=True)
def _forget() -> None:
    ADDING.clear()
    HINDER.clear()


class HostSums:
    """`edl.torch.nccl_sums.Summing`."""

    def __init__(self, store: Any, place: Place) -> None:
        self._store, self._place = PrefixStore("ring", store), place  # only torch's half of it, as NCCL's group has
        self._adding = Adding(place.size)
        self._begun = 0
        self._threads: list[threading.Thread] = []

    def connect(self) -> None:
        HINDER.get(self._place.rank, lambda: None)()
        name = b"ring %d" % self._place.generation
        if self._place.rank == 0:
            ADDING[name] = self._adding
            self._store.set("0", name.decode())
        else:
            self._adding = ADDING[bytes(self._store.get("0"))]

    def begin(self, tensor: torch.Tensor) -> Callable[[], object]:
        number, self._begun = self._begun, self._begun + 1
        thread = threading.Thread(target=self._adding.add, args=(number, self._place.rank, tensor), daemon=True)
        thread.start()
        self._threads.append(thread)
        return lambda: None

    def through(self) -> Callable[[], bool]:
        mine = list(self._threads)
        return lambda: not any(thread.is_alive() for thread in mine)

    def abort(self) -> None:
        with self._adding.turn:
            self._adding.aborted.add(self._place.rank)
            self._adding.turn.notify_all()


@dataclass(frozen=True)
class HostGpu(Gpu):
    """What is called a GPU here."""

    called: bytes = NO_GPU

    def name(self) -> bytes:
        return self.called

    def joined(self, store: Any, place: Place) -> HostSums:
        return HostSums(store, place)


def ring_with(called: bytes) -> GroupRing:
    return GroupRing(lambda: HostGpu(HOST, frozenset({torch.float32}), called))


@pytest.fixture
def gatherings() -> Iterator[Gatherings]:
    found = Gatherings()
    yield found
    found.close()


def members_on(gatherings: Gatherings, *called: bytes) -> Members:
    members = Members(gatherings)
    members.rings = [ring_with(one) for one in called]
    return members


def leave(members: Members) -> None:
    members.all(lambda ring, _: ring.leave())


def sums(ring: GroupRing, rank: int) -> list[float]:
    mine = torch.full((4,), float(rank + 1))
    ring.groups.look_at_sums()
    wait = ring.groups.sum_begun(mine)
    wait()
    ring.groups.settle()
    return mine.tolist()


def adopt(members: Members, generation: int) -> None:
    members.prepare(generation)
    assert members.all(sums) == [[6.0] * 4] * SIZE  # in the old ring
    assert members.all(lambda ring, _: ring.adopt(generation)) == [None] * SIZE


def of_ring(ring: GroupRing) -> Any:
    return ring.groups._sums


def decided(members: Members) -> set[bool]:
    """Steps are made until it is known who sums up: whether it is NCCL's stand-in, as each member has it."""
    deadline = time.monotonic() + PATIENCE_S
    while any(of_ring(ring).open for ring in members.rings):
        assert members.all(sums) == [[6.0] * 4] * SIZE
        assert len({of_ring(ring).open for ring in members.rings}) == 1
        assert time.monotonic() < deadline
    return {of_ring(ring).stands for ring in members.rings}


def test_each_wants_a_gpu_of_its_own() -> None:
    assert each_has_its_own([b"a", b"b"])
    assert not each_has_its_own([b"a", b"b", b"a"])
    assert not each_has_its_own([b"a", NO_GPU])
    assert not each_has_its_own([NO_GPU, NO_GPU])


def test_they_sum_up_where_each_has_its_own(gatherings: Gatherings) -> None:
    members = members_on(gatherings, b"a", b"b", b"c")
    members.enter(1)
    assert decided(members) == {True}
    assert members.all(sums) == [[6.0] * 4] * SIZE
    adopt(members, 2)
    assert {of_ring(ring).stands for ring in members.rings} == {True}  # before its first step
    assert members.all(sums) == [[6.0] * 4] * SIZE
    leave(members)


def test_no_step_waits_for_a_group_that_takes_long_to_form(gatherings: Gatherings) -> None:
    """As after a death. All begin to use it with the same step."""
    may_go_on = threading.Event()
    HINDER[1] = lambda: assert_true(may_go_on.wait(PATIENCE_S))
    members = members_on(gatherings, b"a", b"b", b"c")
    members.enter(1)
    for _ in range(5):
        assert members.all(sums) == [[6.0] * 4] * SIZE
        assert [of_ring(ring).stands for ring in members.rings] == [False] * SIZE
    may_go_on.set()
    assert decided(members) == {True}
    assert members.all(sums) == [[6.0] * 4] * SIZE
    leave(members)


def assert_true(true: bool) -> None:
    assert true


def fails() -> None:
    raise RuntimeError("no such device")


@pytest.mark.parametrize("rank", [0, 2])
def test_where_one_cannot_have_it_all_leave_it(
    gatherings: Gatherings, rank: int, caplog: pytest.LogCaptureFixture
) -> None:
    HINDER[rank] = fails
    members = members_on(gatherings, b"a", b"b", b"c")
    members.enter(1)
    assert decided(members) == {False}
    assert members.all(sums) == [[6.0] * 4] * SIZE
    said = [record.getMessage() for record in caplog.records]
    assert sum("no such device" in line for line in said) == 1
    adopt(members, 2)
    assert members.all(sums) == [[6.0] * 4] * SIZE
    leave(members)


def test_one_that_does_not_form_in_time_is_left(gatherings: Gatherings) -> None:
    over = threading.Event()
    HINDER[1] = lambda: assert_true(over.wait(PATIENCE_S))
    members = members_on(gatherings, b"a", b"b", b"c")
    places = gatherings.places(1)
    assert members.all(lambda ring, rank: ring.enter(places[rank], 1.0)) == [None] * SIZE
    assert decided(members) == {False}
    over.set()
    leave(members)


@pytest.mark.parametrize("called", [(b"a", b"a", b"b"), (b"a", NO_GPU, b"b"), (NO_GPU,) * 3])
def test_gloo_does_where_one_has_none_or_two_have_the_same(gatherings: Gatherings, called: tuple[bytes, ...]) -> None:
    members = members_on(gatherings, *called)
    members.enter(1)
    assert [of_ring(ring) for ring in members.rings] == [None] * SIZE
    assert members.all(sums) == [[6.0] * 4] * SIZE
    leave(members)


def test_what_lies_elsewhere_goes_by_gloo(gatherings: Gatherings) -> None:
    members = members_on(gatherings, b"a", b"b", b"c")
    members.enter(1)
    assert decided(members) == {True}

    def whole(ring: GroupRing, rank: int) -> list[int]:
        mine = torch.full((2,), rank)
        ring.groups.sum_begun(mine)()
        assert not of_ring(ring).busy
        return mine.tolist()

    assert members.all(whole) == [[3, 3]] * SIZE
    leave(members)


def test_one_who_waits_for_a_member_is_freed_when_the_ring_is_given_up(gatherings: Gatherings) -> None:
    members = members_on(gatherings, b"a", b"b", b"c")
    members.enter(1)
    assert decided(members) == {True}

    def act(ring: GroupRing, rank: int) -> float:
        if rank == 2:
            time.sleep(0.3)
            ring.abort()
            return 0.0
        began = time.monotonic()
        with pytest.raises(RingBroken, match=r"1 failed: (it was aborted|a connection was closed by a peer)"):
            sums(ring, rank)
        return time.monotonic() - began

    assert max(members.all(act)) < PATIENCE_S
    assert all(summing.aborted for summing in (ADDING[b"ring 1"],))
    leave(members)


def test_what_is_freed_is_no_sum(gatherings: Gatherings) -> None:
    """The stuck operation ends, and looks like one that is through."""
    members = members_on(gatherings, b"a", b"b", b"c")
    members.enter(1)
    assert decided(members) == {True}
    ring = members.rings[0]
    ring.groups.sum_begun(torch.ones(4))()
    ring.abort()
    deadline = time.monotonic() + PATIENCE_S
    while not of_ring(ring).through()():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with pytest.raises(RingBroken, match="it was aborted"):
        ring.groups.settle()
    leave(members)


@pytest.mark.parametrize("begun", [0, 2, 3])
def test_the_next_group_forms_once_the_one_before_is_freed(
    gatherings: Gatherings, monkeypatch: pytest.MonkeyPatch, begun: int
) -> None:
    """Neither the next ring nor its steps wait for that: gloo sums up. So many members have begun to form it beside the
    mini-batch that is void, and the others in line.
    """
    free = threading.Event()
    abort = HostSums.abort

    def slow(summing: HostSums) -> None:
        abort(summing)
        assert free.wait(PATIENCE_S)

    members = members_on(gatherings, b"a", b"b", b"c")
    members.enter(1)
    assert decided(members) == {True}
    monkeypatch.setattr(HostSums, "abort", slow)
    members.all(lambda ring, _: ring.abort())
    places = gatherings.places(2)

    def form(ring: GroupRing, rank: int) -> None:
        if rank >= begun:
            return ring.enter(places[rank], PATIENCE_S)
        ring.prepare(places[rank], PATIENCE_S, all_prepare=False)
        ring.leave()
        return ring.adopt(2)

    began = time.monotonic()
    assert members.all(form) == [None] * SIZE
    assert time.monotonic() - began < PATIENCE_S / 4
    for _ in range(5):
        assert members.all(sums) == [[6.0] * 4] * SIZE
        assert b"ring 2" not in ADDING
    free.set()
    assert decided(members) == {True}
    leave(members)


def test_a_ring_that_was_given_up_begins_nothing_there(gatherings: Gatherings) -> None:
    members = members_on(gatherings, b"a", b"b", b"c")
    members.enter(1)
    assert decided(members) == {True}
    ring = members.rings[0]
    groups = ring.groups
    members.all(lambda ring, _: ring.abort())
    leave(members)
    deadline = time.monotonic() + PATIENCE_S
    while of_ring_closed(groups) is False:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with pytest.raises(RingBroken, match=r"the group is closed|it was aborted"):
        groups.sum_begun(torch.ones(4))()


def of_ring_closed(groups: Any) -> bool:
    return groups._sums._summing is None


def test_what_users_have_set_stays() -> None:
    environ = {"TORCH_NCCL_ENABLE_MONITORING": "1"}
    prepare_groups(environ)
    assert environ["TORCH_NCCL_ENABLE_MONITORING"] == "1"
    assert environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == environ["TORCH_FR_BUFFER_SIZE"] == "0"
