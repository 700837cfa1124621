"""The next ring, of Horovod or torch's groups, forms beside the one that stands, is adopted, given up, or fails."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pace import patient

sys.path.insert(0, str(Path(__file__).parent / "adapters"))

from fleet import Fleet, WorkerFailed, by
from warm_python import WarmPython

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
BATCH = [[1.0] * 6], [1.0]


# soak: they have Horovod's ring, as `torch` has; real jobs change it in test_keras_epochs.py and test_migrating.py
REST = [pytest.param(way, marks=pytest.mark.soak) for way in ("fit", "function", "graph")]
WAYS = ["torch", "groups", pytest.param("eager", marks=pytest.mark.soak), *REST]


@pytest.fixture(scope="module", params=WAYS)
def fleet(request: pytest.FixtureRequest, warm: WarmPython) -> Iterator[Fleet]:
    with by(request.param, warm, 6, "sgd") as fleet:
        assert fleet.together([0, 1, 2, 3], "prepares") == [True] * 4
        yield fleet


def train(fleet: Fleet, members: list[int]) -> list[str]:
    fleet.together(members, "weight", [(1 / len(members),)] * len(members))
    return fleet.together(members, "train", [BATCH] * len(members))


def adopt(fleet: Fleet, members: list[int], generation: int) -> None:
    """All members do, and train in it."""
    fleet.together(members, "adopt", [(generation,)] * len(members))
    assert fleet.together(members, "stands") == [generation] * len(members)
    fleet.together(members, "synchronize", [(0,)] * len(members))
    check_trains(fleet, members)


def change(fleet: Fleet, members: list[int]) -> None:
    """From whatever rings they are in, while those stand."""
    with fleet.preparing(members) as following:
        following.come(*members)
        assert fleet.together(members, "prepared") == [""] * len(members)
    adopt(fleet, members, following.generation)


def train_beside(fleet: Fleet) -> None:
    """Until the next ring stands, or will not."""
    for member in (0, 1):
        fleet[member].send("train_beside", *BATCH)


def check_trains(fleet: Fleet, members: list[int]) -> None:
    assert train(fleet, members) == [""] * len(members)
    first, *others = fleet.together(members, "weights")
    assert all(other == first for other in others)


def check_untouched(fleet: Fleet) -> None:
    """Those who trained beside made the same steps, none of which failed; and they go on."""
    beside = [fleet[member].answer() for member in (0, 1)]
    assert beside[0] == beside[1]
    assert beside[0][1] == ""
    check_trains(fleet, [0, 1])


def check_not_formed(fleet: Fleet, outcomes: list[str], why: str = "") -> None:
    assert all(outcome.startswith(f"RingBroken: the ring did not form: {why}") for outcome in outcomes), outcomes


HELD = ("files", "sockets", "threads")


def held(used: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(used[what] for what in HELD)


def settled(fleet: Fleet, expected: dict[str, Any]) -> dict[str, Any]:
    """What the first worker uses once what it left is gone: sockets, files and threads go one after the other."""
    deadline = time.monotonic() + patient(10)
    while True:
        used: dict[str, Any] = fleet[0].call("used")
        if held(used) == held(expected) or time.monotonic() > deadline:
            return used


def quiet(fleet: Fleet) -> dict[str, Any]:
    """What the first worker uses once that does not change: what it has left is let go aside."""
    before, now = fleet[0].call("used"), fleet[0].call("used")
    while held(now) != held(before):
        before, now = now, fleet[0].call("used")
    return now


@pytest.fixture(autouse=True)
def ring_of_two(fleet: Fleet) -> None:
    fleet.form([0, 1])
    fleet.together([0, 1], "synchronize", [(0,)] * 2)


@pytest.mark.parametrize("fleet", ["torch", "groups", "eager", *REST], indirect=True)
def test_the_next_ring_forms_while_this_one_reduces(fleet: Fleet) -> None:
    """The newcomer is in its ring of one meanwhile."""
    with fleet.preparing([1, 0, 2]) as following:
        following.come(0, 1)
        for _ in range(3):
            check_trains(fleet, [0, 1])  # and it cannot have formed yet
        train_beside(fleet)
        following.come(2)
        assert fleet[2].call("prepared") == ""
        check_untouched(fleet)
        assert fleet.together([0, 1], "prepared") == ["", ""]
    adopt(fleet, [1, 0, 2], following.generation)


@pytest.mark.parametrize("fleet", ["torch", "function"], indirect=True)
def test_its_members_go_through_the_names_of_the_gradients_where_all_know_the_same(fleet: Fleet) -> None:
    train(fleet, [0, 1])  # a function is traced by now
    fleet.together([0, 1], "names")
    change(fleet, [1, 0])
    first, second = fleet.together([0, 1], "names")
    assert first == second != []
    fleet[0].call("know_of_name", "stranger")
    change(fleet, [0, 1])
    assert fleet.together([0, 1], "names") == [[], []]
    fleet[1].call("know_of_name", "stranger")
    change(fleet, [1, 0])
    assert fleet.together([0, 1], "names") == [sorted([*first, "stranger"])] * 2


@pytest.mark.slow
@pytest.mark.parametrize("fleet", ["torch", "function"], indirect=True)
@pytest.mark.parametrize(("fault", "victim"), [("die_before_names", 4), ("hang_before_names", 5)])
def test_a_member_does_not_go_through_the_names(fleet: Fleet, fault: str, victim: int) -> None:
    """It dies, which frees the others where their ring stands by then, or hangs. The leader's word frees them."""
    fleet[victim].call(fault)
    with fleet.preparing([0, victim, 1], 60.0) as following:
        following.come(victim, 0, 1)
        fleet.together([0, 1], "later", [(2.0, "release", following.generation)] * 2)
        train_beside(fleet)
        check_untouched(fleet)
        check_not_formed(fleet, fleet.together([0, 1], "prepared"))
        fleet.together([0, 1], "aborted")
    fleet[victim].end()
    change(fleet, [1, 0])


@pytest.mark.slow
def test_of_thirty_changes_nothing_remains(fleet: Fleet) -> None:
    """But two threads that sleep, of an engine that has held a ring. Each has held one of three by then."""
    for members in ([0, 1, 2], [1, 0], [0, 1, 2], [1, 0]):
        change(fleet, members)
    fleet.together([0, 1], "leave")
    alone = quiet(fleet)
    fleet.form([0, 1])
    before = quiet(fleet)
    assert before["sockets"] > alone["sockets"]
    for members in ([0, 1, 2], [1, 0]) * 15:
        with fleet.preparing(members) as following:
            following.come(*members)
            assert fleet.together(members, "prepared") == [""] * len(members)
        fleet.together(members, "adopt", [(following.generation,)] * len(members))
        found = fleet.together(members, "largest", [([member],) for member in members])
        assert found == [[max(members)]] * len(members)
    fleet.together([0, 1], "synchronize", [(0,)] * 2)
    check_trains(fleet, [0, 1])
    after = settled(fleet, before)
    for what in HELD:
        assert after[what] == before[what], (what, after["open"])
    assert after["resident_mb"] < before["resident_mb"] + 10
    fleet.together([0, 1], "leave")
    left = settled(fleet, alone)
    assert left["sockets"] == alone["sockets"]
    assert left["cpu"] < 0.05, "a ring that stands polls"


def test_a_ring_that_is_released_while_it_forms(fleet: Fleet) -> None:
    began = time.monotonic()
    with fleet.preparing([0, 1, 3], 60.0) as following:
        following.come(0, 1)
        fleet.together([0, 1], "later", [(0.5, "release", following.generation)] * 2)
        train_beside(fleet)
        check_untouched(fleet)
        check_not_formed(fleet, fleet.together([0, 1], "prepared"))
    assert time.monotonic() - began < patient(20)
    change(fleet, [1, 0])


def test_a_ring_that_was_released_before_it_was_asked_for(fleet: Fleet) -> None:
    with fleet.preparing([0, 1], 60.0) as following:
        fleet.together([0, 1], "release", [(following.generation,)] * 2)
        following.come(0, 1)
        check_not_formed(fleet, fleet.together([0, 1], "prepared"), "it was given up before")
    change(fleet, [1, 0])


@pytest.mark.slow
def test_a_ring_that_stands_and_is_released(fleet: Fleet) -> None:
    fleet.together([0, 1], "leave")
    alone = quiet(fleet)
    fleet.form([0, 1])
    before = quiet(fleet)
    with fleet.preparing([0, 1]) as following:
        following.come(0, 1)
        assert fleet.together([0, 1], "prepared") == ["", ""]
    fleet.together([0, 1], "release", [(following.generation,)] * 2)
    with pytest.raises(WorkerFailed, match="RingBroken"):
        fleet.together([0, 1], "adopt", [(following.generation,)] * 2)
    check_trains(fleet, [0, 1])
    assert settled(fleet, before)["sockets"] == before["sockets"] > alone["sockets"]
    change(fleet, [1, 0])


@pytest.mark.slow
def test_a_member_that_never_comes(fleet: Fleet) -> None:
    with fleet.preparing([3, 0, 1], 2.0) as following:
        following.come(0, 1)
        train_beside(fleet)
        check_untouched(fleet)
        outcomes = fleet.together([0, 1], "prepared")
    check_not_formed(fleet, outcomes, "not all members came within 2 s")
    change(fleet, [1, 0])


@pytest.mark.slow
def test_of_rings_that_never_form_no_thread_remains(fleet: Fleet) -> None:
    def come_to_nothing() -> None:
        with fleet.preparing([3, 0, 1], 1.0) as following:
            following.come(0, 1)
            check_not_formed(fleet, fleet.together([0, 1], "prepared"))

    come_to_nothing()
    before = quiet(fleet)
    for _ in range(3):
        come_to_nothing()
    assert settled(fleet, before)["threads"] == before["threads"]
    check_trains(fleet, [0, 1])


def test_the_ring_that_stands_fails_while_the_next_one_forms(fleet: Fleet) -> None:
    """A forced change forms at once, in line, and what formed is given up."""
    generation = fleet[0].call("stands")
    with fleet.preparing([0, 1, 3], 60.0) as following:
        following.come(0, 1)
        fleet[0].call("abort_of", generation)
        assert all("Broken" in answer or "Error" in answer for answer in train(fleet, [0, 1]))
        fleet.form([1, 0])
        check_trains(fleet, [0, 1])
        check_not_formed(fleet, fleet.together([0, 1], "prepared"))
    change(fleet, [0, 1])


def test_a_ring_in_place_of_a_broken_one_forms_beside_the_mini_batch_that_is_void(fleet: Fleet) -> None:
    generation = fleet[0].call("stands")
    with fleet.preparing([1, 0]) as following:
        fleet.together([0, 1], "abort_of", [(generation,)] * 2)
        following.come(0, 1)
        assert all("Broken" in answer or "Error" in answer for answer in train(fleet, [0, 1]))
        assert fleet.together([0, 1], "prepared") == ["", ""]
    adopt(fleet, [1, 0], following.generation)


def test_the_ring_that_stands_fails_when_the_next_one_is_there(fleet: Fleet) -> None:
    """A worker that has missed the word voids a mini-batch, and adopts the ring that already stands."""
    generation = fleet[0].call("stands")
    with fleet.preparing([0, 1, 2]) as following:
        following.come(0, 1, 2)
        assert fleet.together([0, 1, 2], "prepared") == [""] * 3
    fleet.together([0, 2], "adopt", [(following.generation,)] * 2)
    fleet[1].call("weight", 0.5)
    late = fleet[1].call("train", *BATCH)
    assert "Broken" in late or "Error" in late
    fleet[1].call("abort")  # of what is in flight, which is not the next ring
    assert fleet[1].call("stands") == generation
    fleet[1].call("adopt", following.generation)
    fleet.together([0, 1, 2], "synchronize", [(0,)] * 3)
    check_trains(fleet, [0, 1, 2])


def test_an_abort_between_prepared_and_adopted(fleet: Fleet) -> None:
    with fleet.preparing([1, 0]) as following:
        following.come(0, 1)
        assert fleet.together([0, 1], "prepared") == ["", ""]
    fleet[0].call("abort_of", following.generation)
    check_trains(fleet, [0, 1])  # the one that stands
    for member in (0, 1):
        with pytest.raises(WorkerFailed, match=r"RingBroken: ring \d+ was not prepared, or has failed since"):
            fleet[member].call("adopt", following.generation)
    check_trains(fleet, [0, 1])
    change(fleet, [1, 0])


@pytest.mark.parametrize("fleet", ["torch", "groups", "eager", *REST], indirect=True)
def test_a_member_is_killed_while_the_next_ring_forms(fleet: Fleet) -> None:
    """At whatever moment of it. The leader's word frees those whom the death itself does not."""
    with fleet.preparing([0, 3, 1], 60.0) as following:
        following.come(3, 0, 1)
        fleet[3].signal(signal.SIGKILL)
        fleet.together([0, 1], "later", [(1.0, "release", following.generation)] * 2)
        train_beside(fleet)
        check_untouched(fleet)
        fleet.together([0, 1], "prepared")
        fleet.together([0, 1], "aborted")
    with pytest.raises(WorkerFailed, match=r"RingBroken"):
        fleet[0].call("adopt", following.generation)
    change(fleet, [1, 0])


def test_a_process_ends_while_the_next_ring_forms(fleet: Fleet) -> None:
    """None of Horovod's threads is in its way."""
    with fleet.preparing([2, 0], 60.0) as following:
        following.come(2)
        began = time.monotonic()
        assert fleet[2].finish() == 0
    assert time.monotonic() - began < patient(20)
