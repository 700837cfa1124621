"""What a library's loop does after each step is the same on all workers: who trained it, who was behind, who is new."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from edl.errors import RingBroken, UsageError
from edl.torch.loop_steps import LoopState, LoopSteps, StepEnd
from edl.torch.ring_words import RingWords
from edl.torch.traveller import as_plain, from_plain


class FakeSeat:
    """A trainer, at whose switch something may happen."""

    def __init__(self, **now: bool) -> None:
        self.voided, self.weightless, self.new = now.get("voided", False), now.get("weightless", False), now.get("new")
        self.pass_number = 0
        self.settled = False
        self.at_switch: Callable[[], object] = lambda: None

    def rehearsing(self) -> bool:
        return bool(self.new)

    def epoch(self) -> int:
        return self.pass_number

    def before_reduce(self) -> None:
        pass

    def settle_step(self) -> None:
        self.settled = True

    def notify_batch_end(self, samples: int | None = None) -> bool:
        self.at_switch()
        return True


class FakeState(LoopState):
    def __init__(self) -> None:
        self.ending: Callable[[], StepEnd] = lambda: self.ended

    def now(self) -> dict[str, Any]:
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
        steps.registered.loop = {"ended": str(ended), "open_pass": 4}

    seat.at_switch = come
    assert not steps.counts
    assert steps.end_step(counted=False) is ended
    assert steps.registered.loop is steps.state and steps.state.open_pass == 4 and steps.begun_anew


def test_what_travels_in_the_middle_of_a_step_says_that_it_comes_again() -> None:
    steps = steps_of(FakeSeat())
    steps.begin_step()
    steps.end_step(counted=True)
    assert dict(steps.state) == {"ended": "counted", "open_pass": 0}
    steps.begin_step()
    assert dict(steps.state.items())["ended"] == "again"


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
    words = RingWords(SimpleNamespace(ring=BrokenRing()), seat)
    assert words.decision(True, of_all=True) and not words.decision(False, of_all=False)
    assert words.reduced(torch.tensor(3.0), "mean").item() == 3.0
    assert words.told({"path": "a"}, 0) == {"path": "a"}
    words.meet()
    assert len(voids) == 5
    seat.voided = True  # the others know it too: nobody is asked
    words.meet()
    assert len(voids) == 5


def test_a_reduction_that_there_is_not_is_refused() -> None:
    words = RingWords(SimpleNamespace(ring=None), SimpleNamespace(size=lambda: 2))
    with pytest.raises(UsageError, match="edl has 'mean' and 'sum'"):
        words.reduced(1.0, "max")
