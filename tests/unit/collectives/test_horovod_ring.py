"""Which of two engines a ring of Horovod is formed in, with engines that are fakes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from edl.collectives import horovod_ring
from edl.collectives.horovod_ring import HorovodRing
from edl.collectives.name_warmup import Named
from edl.errors import RingBroken
from edl.protocol.assignment import Place

PATIENCE_S = 10.0
BIAS = Named("bias", (10,), "float32", 4)


class Gone(Exception):
    """As the framework says that a collective failed."""


class FakeEngine:
    """Leaving its ring takes until `may_leave`."""

    held = False
    refused = False
    broken = False
    whole = False  # a peer has cut it

    def __init__(self, library: SimpleNamespace, *, needs_elastic: bool) -> None:
        self.library = library
        self.settled = 0
        self.place: Place | None = None
        self.busy = False
        self.may_leave = threading.Event()
        self.may_leave.set()
        self.left = threading.Event()

    @property
    def idle(self) -> bool:
        return self.place is None and not self.busy

    @property
    def free(self) -> bool:
        return self.idle and not self.spent

    @property
    def spent(self) -> bool:
        return self.held or self.refused

    @property
    def leaving(self) -> bool:
        return self.place is not None and not self.may_leave.is_set()

    def form(
        self, place: Place, timeout_s: float, wanted: Callable[[], bool] = lambda: True, *, awaited: bool = True
    ) -> None:
        assert self.place is None
        self.place = place

    def stands(self, generation: int) -> bool:
        return self.place is not None and self.place.generation == generation

    def note_broken(self, generation: int) -> None:
        self.broken = self.broken or self.stands(generation)

    def settle(self) -> None:
        self.settled += 1

    def leave(self, generations: range | None = None) -> None:
        if self.place is not None and (generations is None or self.place.generation in generations):
            assert self.may_leave.wait(PATIENCE_S)
            self.place = None
        self.left.set()

    def abort(self, given_up: range | None = None) -> None: ...


class FakeFace:
    needs_elastic = False
    libraries = (SimpleNamespace(taker="one"), SimpleNamespace(taker="two"))

    def __init__(self) -> None:
        self.called: list[str] = []

    def call(self, library: SimpleNamespace) -> None:
        self.called.append(library.taker)


class FakeTensors:
    """Of a ring whose members all know of the same names; or one is gone."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.reduced: list[tuple[str, list[str]]] = []
        self.fails: Exception | None = None

    def largest_in(self, library: str, values: list[int], name: str) -> list[int]:
        self.asked.append(library)
        if self.fails is not None:
            raise self.fails
        return values

    def reduce_zeros(self, library: str, tensors: list[Named]) -> None:
        self.reduced.append((library, [one.name for one in tensors]))


class Parts(NamedTuple):
    """Of a ring: the fakes that it is made of."""

    ring: HorovodRing
    face: FakeFace
    tensors: FakeTensors
    one: FakeEngine
    two: FakeEngine


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Parts]:
    face, tensors, engines = FakeFace(), FakeTensors(), list[FakeEngine]()

    def engine(library: SimpleNamespace, *, needs_elastic: bool) -> FakeEngine:
        engines.append(FakeEngine(library, needs_elastic=needs_elastic))
        return engines[-1]

    monkeypatch.setattr(horovod_ring, "HorovodPython", lambda _module: face)
    monkeypatch.setattr(horovod_ring, "RingEngine", engine)
    collectives: Any = tensors
    made = HorovodRing("horovod.none", collectives, lambda error: isinstance(error, Gone), lambda: [BIAS])
    yield Parts(made, face, tensors, *engines)
    for one in engines:
        one.may_leave.set()


def place(generation: int, size: int = 2) -> Place:
    return Place(generation, 0, size, "w")


def test_a_ring_that_all_prepare_goes_through_the_names_in_its_own_engine(parts: Parts) -> None:
    ring, face, tensors, two = parts.ring, parts.face, parts.tensors, parts.two
    ring.enter(place(1), 1.0)
    ring.prepare(place(2), 1.0, all_prepare=True)
    assert tensors.reduced == [("two", ["bias"])]
    assert (ring.place, face.called) == (place(1), ["one"])
    before = two.settled
    ring.adopt(2)
    assert (ring.place, two.settled) == (place(2), before + 1)


def test_where_some_enter_in_line_or_nobody_else_is_no_names_are_gone_through(parts: Parts) -> None:
    ring, tensors, two = parts.ring, parts.tensors, parts.two
    ring.enter(place(1), 1.0)
    ring.prepare(place(2), 1.0, all_prepare=False)
    ring.release(2)
    assert two.left.wait(PATIENCE_S)
    ring.prepare(place(3, size=1), 1.0, all_prepare=True)
    ring.enter(place(4), 1.0)
    assert tensors.asked == []


def test_a_member_that_goes_while_names_are_gone_through_breaks_that_ring_alone(parts: Parts) -> None:
    ring, tensors, one, two = parts.ring, parts.tensors, parts.one, parts.two
    ring.enter(place(1), 1.0)
    tensors.fails = Gone("[/x/gloo.cc:1] connection closed")
    with pytest.raises(RingBroken, match=r"^the ring did not form: a member is gone: connection closed$"):
        ring.prepare(place(2), 1.0, all_prepare=True)
    assert [one.broken, two.broken] == [False, True]
    tensors.fails = ValueError("a fault of ours")
    two.place = None
    with pytest.raises(ValueError, match="ours"):
        ring.prepare(place(3), 1.0, all_prepare=True)


def test_the_next_ring_is_formed_while_the_one_before_is_being_left(parts: Parts) -> None:
    ring, face, one, two = parts.ring, parts.face, parts.one, parts.two
    ring.enter(place(1), 1.0)
    one.may_leave.clear()
    ring.leave()
    ring.enter(place(2), 1.0)
    assert (two.place, one.place, ring.size) == (place(2), place(1), 2)
    assert face.called == ["one", "two"]
    one.may_leave.set()
    assert one.left.wait(PATIENCE_S)
    ring.enter(place(3), 1.0)
    assert face.called == ["one", "two", "one"]


def test_a_whole_ring_is_left_before_anything_else(parts: Parts) -> None:
    ring, one, two = parts.ring, parts.one, parts.two
    ring.enter(place(1), 1.0)
    one.whole = True
    ring.leave()
    assert one.left.is_set(), "a script that looks finds no ring any more"
    ring.enter(place(2), 1.0)
    assert (one.place, two.place) == (place(2), None)


def test_while_the_other_engine_is_busy_a_ring_is_left_first(parts: Parts) -> None:
    ring, one, two = parts.ring, parts.one, parts.two
    ring.enter(place(1), 1.0)
    two.busy = True  # with a ring that was given up while it formed
    ring.enter(place(2), 1.0)
    assert one.left.is_set()
    assert (one.place, two.place) == (place(2), None)


def test_an_engine_that_is_held_is_not_used(parts: Parts) -> None:
    ring, one, two = parts.ring, parts.one, parts.two
    one.held = True
    ring.enter(place(1), 1.0)
    assert (one.place, two.place) == (None, place(1))


def test_beside_an_engine_that_has_refused_rings_are_formed_in_the_other_one(parts: Parts) -> None:
    ring, one, two = parts.ring, parts.one, parts.two
    ring.enter(place(1), 1.0)
    two.refused = True
    assert not ring.prepares
    with pytest.raises(RingBroken, match="beside one that stands"):
        ring.prepare(place(2), 1.0, all_prepare=True)
    ring.enter(place(3), 1.0)
    assert (one.place, two.place, ring.size) == (place(3), None, 2)


def test_an_engine_that_has_refused_is_left_to_itself(parts: Parts) -> None:
    ring, one, two = parts.ring, parts.one, parts.two
    ring.enter(place(1), 1.0)
    ring.leave()
    one.refused = True
    ring.enter(place(2), 1.0)
    assert (one.place, two.place) == (None, place(2))
    assert not ring.prepares


def test_outside_any_ring_there_is_nothing_to_leave(parts: Parts) -> None:
    ring, face = parts.ring, parts.face
    ring.leave()
    ring.leave()
    ring.enter(place(1), 1.0)
    assert face.called == ["one"]
