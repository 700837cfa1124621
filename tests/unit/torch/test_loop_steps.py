"""What a library's loop does after each step is the same on all workers: who trained it, who was behind, who is new."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from edl.errors import RingBroken, UsageError
from edl.torch.loop_collectives import LoopCollectives, Saying
from edl.torch.loop_steps import LoopState, LoopSteps, StepEnd, as_plain, from_plain


class FakeSeat:
    """A trainer, at whose switch something may happen."""

    def __init__(self, **now: bool) -> None:
        self.voided, self.weightless, self.new = now.get("voided", False), now.get("weightless", False), now.get("new")
        self.pass_number = 0
        self.settled = False
        self.number = 1  # of the ring
        self.committed = 0
        self.voids: list[BaseException] = []
        self.at_evaluation: Callable[[], object] = lambda: None
        self.at_switch: Callable[[], object] = lambda: None

    def rehearsing(self) -> bool:
        return bool(self.new)

    def epoch(self) -> int:
        return self.pass_number

    def generation(self) -> int:
        return self.number

    virtual = 0

    def before_reduce(self) -> None:
        pass

    def void_beside(self, error: BaseException) -> None:
        self.voids.append(error)

    def evaluate_shared(self, work: Any) -> tuple[bytes, ...]:
        self.at_evaluation()
        return (work.found(),)

    def settle_step(self) -> None:
        self.settled = True

    def notify_batch_end(self, samples: int | None = None) -> bool:
        self.committed += not self.voided and not self.new
        self.at_switch()
        return True


class FakeState(LoopState):
    def __init__(self) -> None:
        self.ending: Callable[[], StepEnd] = lambda: self.ended

    def read(self) -> dict[str, Any]:
        return {"ended": str(self.ending()), "open_pass": self.open_pass}

    def take(self, found: Mapping[str, Any]) -> None:
        self.ended, self.open_pass = StepEnd(found["ended"]), found["open_pass"]


def steps_of(seat: FakeSeat) -> LoopSteps:
    state = FakeState()
    steps = LoopSteps(seat, state)
    state.ending = steps.ending
    steps.registered = SimpleNamespace(loop=state)
    return steps


@pytest.mark.parametrize(
    ("now", "ended"),
    [
        ({}, StepEnd.COUNTED),
        ({"voided": True}, StepEnd.AGAIN),
        ({"weightless": True}, StepEnd.EMPTY),
        ({"weightless": True, "voided": True}, StepEnd.AGAIN),
    ],
)
def test_a_step_counts_unless_it_is_void_or_of_nobody(now: dict[str, bool], ended: StepEnd) -> None:
    seat = FakeSeat(**now)
    steps = steps_of(seat)
    steps.begin_step()
    assert steps.end_step(counted=steps.settle()) is ended
    assert seat.settled is (ended is StepEnd.COUNTED)


@pytest.mark.parametrize("ended", list(StepEnd))
def test_a_newcomer_goes_on_as_the_others_do(ended: StepEnd) -> None:
    seat = FakeSeat(new=True)
    steps = steps_of(seat)
    steps.begin_step()

    def come() -> None:
        steps.registered.loop = {"ended": str(ended), "open_pass": 4, "stands": False}

    seat.at_switch = come
    assert not steps.counts
    assert steps.end_step(counted=False) is ended
    assert steps.registered.loop is steps.state and steps.state.open_pass == 4 and steps.begun_anew


def test_what_travels_in_the_middle_of_a_step_says_that_it_comes_again() -> None:
    steps = steps_of(FakeSeat())
    steps.begin_step()
    steps.end_step(counted=True)
    assert dict(steps.state) == {"ended": "counted", "open_pass": 0, "stands": False}
    steps.begin_step()
    assert dict(steps.state.items())["ended"] == "again"


def test_a_newcomer_that_comes_between_two_steps_gets_what_was_so_as_the_step_had_ended() -> None:
    """It makes all that follows by itself: what the others have made of that already would count twice."""
    steps = steps_of(FakeSeat())
    steps.begin_step()
    assert not steps.between
    steps.end_step(counted=True)
    assert steps.between
    steps.ask(Saying("word", lambda: None))
    steps.state.open_pass = 9  # as a callback changes what travels
    assert dict(steps.state)["open_pass"] == 0
    steps.begin_step()
    assert not steps.between and dict(steps.state)["open_pass"] == 9


def test_a_state_that_comes_with_a_ring_between_two_steps_is_not_taken() -> None:
    """Its worker may have come less far since the end of the step."""
    seat = FakeSeat()
    steps = steps_of(seat)
    steps.begin_step()
    steps.end_step(counted=True)

    def come() -> None:
        steps.registered.loop = {"ended": "again", "open_pass": 7, "stands": True}

    seat.at_evaluation = come
    steps.ask(Saying("word", lambda: None))
    assert not steps.take_over() and (steps.state.ended, steps.state.open_pass) == (StepEnd.COUNTED, 0)


@pytest.mark.parametrize("others_step", [1, 2])
def test_who_has_begun_the_next_step_does_not_go_back_behind_what_follows_the_one_before(others_step: int) -> None:
    """With the state of a worker that still stands between them. One that stands after the next step is ahead."""
    seat = FakeSeat()
    steps = steps_of(seat)
    steps.begin_step()
    steps.end_step(counted=True)
    steps.begin_step()
    seat.voided = True

    def come() -> None:
        seat.committed = others_step
        steps.registered.loop = {"ended": "counted", "open_pass": 7, "stands": True}

    seat.at_switch = come
    assert steps.end_step(counted=False) is (StepEnd.AGAIN if others_step == 1 else StepEnd.COUNTED)


@pytest.mark.parametrize("changes", [False, True])
def test_a_batch_of_the_ring_before_is_void(changes: bool) -> None:
    seat = FakeSeat()
    steps = steps_of(seat)
    steps.note_fetched()
    seat.number += changes
    steps.begin_step()
    assert bool(seat.voids) is changes


def test_the_next_pass_begins_with_the_batch_that_belongs_to_it() -> None:
    seat = FakeSeat()
    steps = steps_of(seat)
    assert not steps.is_beyond()  # nothing is trained yet
    steps.begin_step()
    steps.end_step(counted=True)
    assert not steps.is_beyond()
    seat.pass_number = 1
    assert steps.is_beyond()


def test_a_void_step_opens_no_pass() -> None:
    steps = steps_of(FakeSeat(voided=True))
    steps.begin_step()
    steps.end_step(counted=False)
    assert steps.state.open_pass is None


def test_tensors_of_a_state_travel_as_plain_values() -> None:
    torch = pytest.importorskip("torch")
    value = {"best": torch.tensor(1.5, dtype=torch.bfloat16), "all": [torch.arange(6).reshape(2, 3), "a"], "none": None}
    plain = as_plain(value)
    assert not [one for one in (plain["best"], *plain["all"]) if isinstance(one, torch.Tensor)]
    found = from_plain(plain)
    assert torch.equal(found["best"], value["best"]) and torch.equal(found["all"][0], value["all"][0])
    assert (found["all"][1], found["none"]) == ("a", None)


class BrokenRing:
    def __getattr__(self, name: str) -> Any:
        def fail(*_: Any) -> Any:
            raise RingBroken("a peer is gone")

        return (lambda _error: True) if name == "is_failure" else fail


def test_a_worker_goes_on_with_what_it_has_where_a_peer_is_gone_and_the_next_step_is_void() -> None:
    torch = pytest.importorskip("torch")
    voids: list[BaseException] = []
    seat = SimpleNamespace(rank=lambda: 0, size=lambda: 2, voided=False, void_beside=voids.append)
    words = LoopCollectives(SimpleNamespace(ring=BrokenRing()), seat)
    assert words.decision(True, of_all=True) and not words.decision(False, of_all=False)
    assert words.reduced(torch.tensor(3.0), "mean").item() == 3.0
    assert words.told({"path": "a"}, 0) == {"path": "a"}
    words.meet()
    assert len(voids) == 5
    seat.voided = True  # the others know it too: none is asked
    words.meet()
    assert len(voids) == 5


@pytest.mark.parametrize(
    ("names", "wrong"),
    [("bbm", [2]), ("mbb", [0]), ("bm", [1]), ("bbmm", [2, 3]), ("bbb", [])],
    ids=["a newcomer", "the first", "one of two", "two of four", "none"],
)
def test_who_calls_another_collective_than_most_is_told_of_it_and_the_others_go_on(
    names: str, wrong: list[int]
) -> None:
    pytest.importorskip("torch")
    called = [{"b": "barrier", "m": "all_reduce"}[name] for name in names]
    said = [msgspec.msgpack.encode([name, number]) for number, name in enumerate(called)]
    failed = list[int]()
    for rank, name in enumerate(called):
        voids: list[BaseException] = []
        seat: Any = SimpleNamespace(size=lambda: len(names), voided=False, void_beside=voids.append)
        ring: Any = SimpleNamespace(gathered=lambda _mine, _name: said, is_failure=lambda _error: True)
        words = LoopCollectives(SimpleNamespace(ring=ring), seat)
        try:
            found = words.by_rank(name, partial(int, rank))
        except UsageError as error:
            told = "this worker has called all_reduce in a mini-batch in which the others call barrier"
            failed.append(rank if told in str(error) else -1)
        else:
            assert (found, len(voids)) == (([rank], 1) if wrong else ([0, 1, 2], 0))
    assert failed == wrong


def test_a_reduction_that_there_is_not_is_refused() -> None:
    words = LoopCollectives(SimpleNamespace(ring=None), SimpleNamespace(size=lambda: 2))
    with pytest.raises(UsageError, match="edl has 'mean' and 'sum'"):
        words.reduced(1.0, "max")
