"""The thread that forms the next ring, and the training thread that waits for it."""

from __future__ import annotations

import threading
from queue import Queue
from typing import Any

import pytest

from edl.core.worker.worker_inputs import RingNotPrepared, RingPrepared
from edl.errors import RingBroken
from edl.protocol.assignment import Place
from edl.trainer.ring_builder import RingBuilder

PATIENCE_S = 10.0


class Ring:
    """It forms once it may."""

    def __init__(self) -> None:
        self.may_form = threading.Event()
        self.formed: list[int] = []

    def prepare(self, place: Place, timeout_s: float, *, all_prepare: bool) -> None:
        assert self.may_form.wait(PATIENCE_S)
        self.formed.append(place.generation)

    def release(self, generation: int) -> None: ...


class Framework:
    def __init__(self) -> None:
        self.ring = Ring()


class Offers:
    """What `edl.trainer.state_handoff` does of it."""

    def __init__(self) -> None:
        self.withdrawn = 0

    def offer(self, place: Place, timeout_s: float) -> int:
        return 7

    def withdraw(self, generation: int) -> None:
        self.withdrawn = generation


def usual() -> tuple[Any, Any]:
    return Framework(), Offers()


@pytest.mark.parametrize(("rank", "all_prepare", "offer"), [(0, True, 7), (1, True, 0), (0, False, 0)])
def test_rank_0_of_a_ring_that_all_prepare_offers_its_state(rank: int, all_prepare: bool, offer: int) -> None:
    framework, offers = usual()
    framework.ring.may_form.set()
    told = Queue[object]()
    RingBuilder(framework, offers, told.put).begin(Place(2, rank, 2, "w"), 1.0, all_prepare=all_prepare)
    assert told.get(timeout=PATIENCE_S) == RingPrepared(2, offer)


def test_of_a_ring_that_is_let_go_of_nothing_is_offered_any_more() -> None:
    (framework, offers), told = usual(), Queue[object]()
    preparer = RingBuilder(framework, offers, told.put)
    preparer.begin(Place(2, 0, 2, "w"), 1.0, all_prepare=True)
    preparer.release(2)
    assert offers.withdrawn == 2
    offers.withdrawn = 0
    framework.ring.may_form.set()
    preparer.wait_formed(2)
    assert offers.withdrawn == 2, "nor what was offered just then"
    assert told.empty()


def test_a_ring_is_waited_for_though_its_thread_is_only_about_to_begin() -> None:
    """The link's thread is told to begin it, and the training thread comes first."""
    framework, offers = usual()
    preparer = RingBuilder(framework, offers, lambda word: None)
    found: list[list[int]] = []

    def wait() -> None:
        preparer.wait_formed(2)
        found.append([*framework.ring.formed])

    waiting = threading.Thread(target=wait)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive(), "it has not begun"
    preparer.begin(Place(2, 0, 2, "w"), 1.0, all_prepare=True)
    framework.ring.may_form.set()
    waiting.join(PATIENCE_S)
    assert found == [[2]]


def test_processes_of_one_number_tell_each_other_where_their_worker_gives_their_part() -> None:
    framework, offers = usual()
    framework.ring.may_form.set()
    told, exchanged = Queue[object](), []
    builder = RingBuilder(framework, offers, told.put)

    def exchange(generation: int, number: int) -> list[int]:
        exchanged.append((generation, number))
        return [number, 0]

    builder.exchange = exchange
    builder.begin(Place(2, 0, 2, "w"), 1.0, all_prepare=True)
    assert told.get(timeout=PATIENCE_S) == RingPrepared(2, 7)
    assert exchanged == [(2, 7)]
    assert [builder.offer_of(2, rank) for rank in range(2)] == [7, 0]
    assert builder.offer_of(3, 0) == 0


def test_a_ring_in_which_that_fails_is_not_prepared() -> None:
    framework, offers = usual()
    framework.ring.may_form.set()
    framework.ring.prepares = True
    told = Queue[Any]()
    builder = RingBuilder(framework, offers, told.put)

    def exchange(_generation: int, _number: int) -> list[int]:
        raise RingBroken("a member is gone")

    builder.exchange = exchange
    builder.begin(Place(2, 1, 2, "w"), 1.0, all_prepare=True)
    assert told.get(timeout=PATIENCE_S) == RingNotPrepared(2, "a member is gone")
