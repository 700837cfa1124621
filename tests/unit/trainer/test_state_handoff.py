"""What one trainer sends of its state, and another takes, step after step, over real connections."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from edl.core.worker.worker_inputs import WHOLE, StatePortion
from edl.errors import RingBroken
from edl.protocol.assignment import Place
from edl.trainer.framework_port import Late, Parted
from edl.trainer.registered_state import RegisteredState
from edl.trainer.state_handoff import StateHandoff, StateSource
from edl.trainer.value_tree import Arrays

WAIT_S = 20.0
KEY = b"k" * 32


class Lying:
    """Of a few bytes, read as they are asked for."""

    def __init__(self, state: bytearray, begin: int, end: int) -> None:
        self._state, self._begin, self.size = state, begin, end - begin

    def part(self, begin: int) -> memoryview:
        return memoryview(bytes(self._state[self._begin + begin : self._begin + self.size]))

    def whole(self) -> bool:
        return True


class Apart:
    """A model of as many bytes as there may be portions; each update adds one to each of them."""

    def __init__(self, state: bytes) -> None:
        self.state, self.rate = bytearray(state), 0
        self.unpack: Callable[[Callable[[int], memoryview]], None] = lambda first: None

    def given(self) -> bool:
        return True

    def parted(self, portion: StatePortion = WHOLE) -> Parted:
        begin = portion.first
        end = len(self.state) if portion.is_last else portion.until
        early = bytes([self.rate]) if portion.is_first or portion.is_last else b""
        return Parted(bytes([begin]), early, Lying(self.state, begin, end))

    def expect(self) -> None: ...

    def take_early(self, description: bytes, early: memoryview) -> Late:
        (begin,) = description
        if early:
            (self.rate,) = bytes(early)

        def take(late: memoryview) -> None:
            self.state[begin : begin + len(late)] = late

        return Late(take, self.unpack)

    def raw(self, contents: Any) -> bytes:
        return b"".join(one.tobytes() for one in contents)

    def put(self, contents: Any, raw: memoryview) -> None:
        assert not contents

    def update(self) -> None:
        self.state[:] = bytes((one + 1) % 256 for one in self.state)
        self.rate += 1


class Trainer:
    """One of a ring: what it sends and takes, and what its script has registered."""

    def __init__(self, rank: int, state: bytes) -> None:
        self.apart = Apart(state)
        framework: Any = SimpleNamespace(apart=self.apart)
        extras = RegisteredState(Arrays())
        self.registered = extras.add({"mean": 0.0, "batches": rank})
        self.beside = StateHandoff(framework, extras)
        self.place = Place(2, rank, 3, f"w{rank}", address="127.0.0.1", key=KEY)

    def offer(self) -> int:
        """And come to that ring."""
        number = self.beside.offer(self.place, WAIT_S)
        self.beside.keep_offer(self.place.generation)
        return number

    def update(self) -> None:
        """Something that the script makes of all of the model, as well."""
        self.apart.update()
        self.registered.mean = 0.5 * self.registered.mean + sum(self.apart.state)
        self.registered.batches += 1


@pytest.fixture
def ring() -> Iterator[list[Trainer]]:
    """Two newcomers, of whom one hands on to the other."""
    members = [Trainer(0, b"\x10\x20\x30\x40\x50"), Trainer(1, bytes(5)), Trainer(2, bytes(5))]
    yield members
    for one in members:
        one.beside.drop()


def in_step(ring: list[Trainer], portion: StatePortion, offer: int) -> None:
    """All begin a step, and make its update."""
    root, *newcomers = ring
    root.beside.send(len(newcomers), portion)
    for one in newcomers:
        if portion.is_first:
            one.beside.fetch(StateSource(one.place, 0, offer), WAIT_S, portion)
        else:
            one.beside.fetch_portion(portion)
    threads = [threading.Thread(target=one.beside.take) for one in newcomers]
    for thread in threads:
        thread.start()
    root.beside.wait_sent()
    for thread in threads:
        thread.join(WAIT_S)
    for one in ring:
        assert not one.beside.awaits
        one.update()
        one.beside.end()


@pytest.mark.parametrize("portions", [[1, 1, 1, 1, 1], [1, 1, 3], [2, 3], [5]])
def test_both_are_equal_after_the_last_portion_and_not_before(ring: list[Trainer], portions: list[int]) -> None:
    root, *newcomers = ring
    offer, first = root.offer(), 0
    for count in portions:
        in_step(ring, StatePortion(first, first + count, 5), offer)
        first += count
        for one in newcomers:
            assert one.apart.state[:first] == root.apart.state[:first]
            assert one.registered.batches == root.registered.batches
            is_whole = first == 5
            assert (one.apart.state == root.apart.state) is is_whole
            assert (one.registered.mean == root.registered.mean) is is_whole
            assert one.apart.rate == root.apart.rate
    assert [one.beside.idle for one in ring] == [True] * 3


def test_a_newcomer_that_comes_before_the_root_waits_for_it(ring: list[Trainer]) -> None:
    """It goes to its ring as soon as that is planned, the root once it has made the step of the switch."""
    root, newcomer, _ = ring
    offer = root.beside.offer(root.place, WAIT_S)
    coming = threading.Thread(target=newcomer.beside.fetch, args=(StateSource(newcomer.place, 0, offer), WAIT_S, WHOLE))
    coming.start()
    coming.join(0.1)
    assert coming.is_alive()
    assert root.beside.idle, "its steps in the ring of before are as ever"
    root.update()
    root.beside.keep_offer(2)
    root.beside.send(1, WHOLE)
    coming.join(WAIT_S)
    newcomer.beside.take()
    assert newcomer.apart.state == root.apart.state


@pytest.mark.parametrize("case", ["it is let go of", "another ring", "it gives none any more", "it has made none"])
def test_what_does_not_stand_is_not_kept(ring: list[Trainer], case: str) -> None:
    root, newcomer, _ = ring
    offer = 0 if case == "it has made none" else root.beside.offer(root.place, WAIT_S)
    if case == "it is let go of":
        root.beside.withdraw(2)
    root.beside.withheld = case == "it gives none any more"
    with pytest.raises(RingBroken, match="does not give its state beside a step any more"):
        root.beside.keep_offer(3 if case == "another ring" else 2)
    if offer:
        with pytest.raises(RingBroken, match="did not come beside the step"):
            newcomer.beside.fetch(StateSource(newcomer.place, 0, offer), WAIT_S, WHOLE)
    assert (root.beside.offer(root.place, WAIT_S) == 0) is (case == "it gives none any more")


def test_an_offer_outlives_the_ring_of_before(ring: list[Trainer]) -> None:
    root, newcomer, _ = ring
    offer = root.beside.offer(root.place, WAIT_S)
    root.beside.drop()  # what went on in that one
    root.beside.withdraw(1)
    root.beside.keep_offer(2)
    in_step([root, newcomer], WHOLE, offer)
    assert newcomer.apart.state == root.apart.state


def test_a_newcomer_that_loses_its_source_between_two_portions_is_told_so(ring: list[Trainer]) -> None:
    root, newcomer, _ = ring
    in_step(ring[:2], StatePortion(0, 1, 3), root.offer())
    root.beside.drop()
    newcomer.beside.fetch_portion(StatePortion(1, 2, 3))
    with pytest.raises(RingBroken, match="did not come beside the step"):
        newcomer.beside.take()
    with pytest.raises(RingBroken, match="did not come beside the step"):
        newcomer.beside.fetch_portion(StatePortion(2, 3, 3))  # the last one is waited for at once
    newcomer.beside.drop()
    with pytest.raises(RingBroken, match="it was given up"):
        newcomer.beside.take()


@pytest.mark.parametrize("portions", [2, 3])
def test_one_that_is_freed_waits_no_longer(ring: list[Trainer], portions: int) -> None:
    """The second of two portions is waited for before the script goes on, that of three before its update."""
    root, newcomer, _ = ring
    in_step(ring[:2], StatePortion(0, 1, portions), root.offer())
    threading.Timer(0.2, newcomer.beside.abort, [range(1, 3)]).start()
    goes_on = []

    def in_next_step() -> None:
        newcomer.beside.fetch_portion(StatePortion(1, 2, portions))  # which the root has not begun to send
        goes_on.append(True)
        newcomer.beside.take()

    with pytest.raises(RingBroken, match="its ring is left"):
        in_next_step()
    assert len(goes_on) == portions - 2


@pytest.mark.parametrize("vain", [range(1, 3), range(2**53)], ids=["it is given up", "the job is over"])
@pytest.mark.parametrize("when", ["before it waits", "while it waits"])
def test_a_newcomer_waits_until_its_ring_is_given_up(ring: list[Trainer], vain: range, when: str) -> None:
    root, newcomer, _ = ring
    source = StateSource(newcomer.place, 0, root.beside.offer(root.place, 0.1))
    if when == "before it waits":
        newcomer.beside.abort(vain)
    else:
        threading.Timer(0.4, newcomer.beside.abort, [vain]).start()
    with pytest.raises(RingBroken, match=r"its ring is (left|given up)"):
        newcomer.beside.fetch(source, 0.1, WHOLE)


def test_once_a_ring_is_left_nothing_is_written_into_the_model(ring: list[Trainer]) -> None:
    """All has come, and the thread that unpacks it is in the middle of that; the next ring gives the model a state."""
    root, newcomer, _ = ring
    written: list[int] = []

    def unpack(first: Callable[[int], memoryview]) -> None:
        while True:
            first(5)
            time.sleep(0.001)
            written.append(1)

    newcomer.apart.unpack = unpack
    offer = root.offer()
    root.beside.send(1, WHOLE)
    newcomer.beside.fetch(StateSource(newcomer.place, 0, offer), WAIT_S, WHOLE)
    while not written:
        time.sleep(0.001)
    newcomer.beside.drop()
    before = len(written)
    time.sleep(0.05)
    assert len(written) == before


def test_a_root_whose_newcomers_are_gone_goes_on(ring: list[Trainer], caplog: pytest.LogCaptureFixture) -> None:
    root, newcomer, _ = ring
    in_step(ring[:2], StatePortion(0, 1, 3), root.offer())
    root.beside._timeout_s = 0.1
    newcomer.beside.drop()
    root.beside.send(1, StatePortion(1, 2, 3))
    root.beside.wait_sent()
    assert "did not reach a newcomer" in caplog.text
    assert root.beside.idle
    root.beside.send(1, StatePortion(2, 3, 3))  # of a ring that comes to nothing
    root.beside.wait_sent()
