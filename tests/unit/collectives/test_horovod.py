"""Which of two engines a ring of Horovod is formed in, with engines that are fakes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from edl.collectives import horovod
from edl.collectives.horovod import HorovodRing
from edl.errors import RingBroken
from edl.protocol.ring import Place

PATIENCE_S = 10.0


class FakeEngine:
    """Leaving its ring takes until `may_leave`."""

    held = False
    refused = False
    broken = False
    whole = False  # a peer has cut it

    def __init__(self, library: str, *, needs_elastic: bool) -> None:
        self.library = library
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

    def form(self, place: Place, timeout_s: float, wanted: Callable[[], bool] = lambda: True) -> None:
        assert self.place is None
        self.place = place

    def leave(self, generations: range | None = None) -> None:
        if self.place is not None and (generations is None or self.place.generation in generations):
            assert self.may_leave.wait(PATIENCE_S)
            self.place = None
        self.left.set()

    def abort(self, given_up: range | None = None) -> None: ...


class FakeFace:
    needs_elastic = False
    libraries = ("one", "two")

    def __init__(self, module: str) -> None:
        self.called: list[str] = []

    def call(self, library: str) -> None:
        self.called.append(library)


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(horovod, "Face", FakeFace)
    monkeypatch.setattr(horovod, "RingEngine", FakeEngine)
    made: Any = HorovodRing("horovod.none", None, lambda _: False)  # type: ignore[arg-type]
    yield made
    for engine in made._engines:
        engine.may_leave.set()


def place(generation: int) -> Place:
    return Place(generation, 0, 2, "w")


def test_the_next_ring_is_formed_while_the_one_before_is_being_left(ring: Any) -> None:
    one, two = ring._engines
    ring.enter(place(1), 1.0)
    one.may_leave.clear()
    ring.leave()
    ring.enter(place(2), 1.0)
    assert (two.place, one.place, ring.size) == (place(2), place(1), 2)
    assert ring._face.called == ["one", "two"]
    one.may_leave.set()
    assert one.left.wait(PATIENCE_S)
    ring.enter(place(3), 1.0)
    assert ring._face.called == ["one", "two", "one"]


def test_a_whole_ring_is_left_before_anything_else(ring: Any) -> None:
    one, two = ring._engines
    ring.enter(place(1), 1.0)
    one.whole = True
    ring.leave()
    assert one.left.is_set(), "a script that looks finds no ring any more"
    ring.enter(place(2), 1.0)
    assert (one.place, two.place) == (place(2), None)


def test_while_the_other_engine_is_busy_a_ring_is_left_first(ring: Any) -> None:
    one, two = ring._engines
    ring.enter(place(1), 1.0)
    two.busy = True  # with a ring that was given up while it formed
    ring.enter(place(2), 1.0)
    assert one.left.is_set()
    assert (one.place, two.place) == (place(2), None)


def test_an_engine_that_is_held_is_not_used(ring: Any) -> None:
    one, two = ring._engines
    one.held = True
    ring.enter(place(1), 1.0)
    assert (one.place, two.place) == (None, place(1))


def test_beside_an_engine_that_has_refused_rings_are_formed_in_the_other_one(ring: Any) -> None:
    one, two = ring._engines
    ring.enter(place(1), 1.0)
    two.refused = True
    assert not ring.prepares
    with pytest.raises(RingBroken, match="beside one that stands"):
        ring.prepare(place(2), 1.0, all_prepare=True)
    ring.enter(place(3), 1.0)
    assert (one.place, two.place, ring.size) == (place(3), None, 2)


def test_an_engine_that_has_refused_is_left_to_itself(ring: Any) -> None:
    one, two = ring._engines
    ring.enter(place(1), 1.0)
    ring.leave()
    one.refused = True
    ring.enter(place(2), 1.0)
    assert (one.place, two.place) == (None, place(2))
    assert not ring.prepares


def test_outside_any_ring_there_is_nothing_to_leave(ring: Any) -> None:
    ring.leave()
    ring.leave()
    ring.enter(place(1), 1.0)
    assert ring._face.called == ["one"]
