"""When a wait asks whether it is over: how late it finds out, and how many questions that takes."""

from __future__ import annotations

import pytest

from edl.torch.looks import BLIND_S, LATE, LOOK_S, Looks


class Waits:
    """Over a clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now, self.questions, self.over_at = 0.0, 0, 0.0
        self.looks = Looks(lambda: self.now, self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def is_over(self) -> bool:
        self.questions += 1
        return self.now >= self.over_at

    def one(self, seconds: float) -> float:
        """How late it was noticed."""
        self.over_at, self.questions = self.now + seconds, 0
        self.looks.until(self.is_over)
        return self.now - self.over_at


@pytest.mark.parametrize("seconds", [0.0005, 0.003, 0.007, 0.02, 0.3])
def test_waits_that_are_alike_are_noticed_soon_and_with_few_questions(seconds: float) -> None:
    waits = Waits()
    late = [waits.one(seconds) for _ in range(40)]
    assert max(late) <= max(LOOK_S, LATE * seconds) * 1.1
    assert waits.questions <= 25 if seconds <= BLIND_S else 200


def test_one_that_is_over_already_takes_one_question() -> None:
    waits = Waits()
    assert (waits.one(0.0), waits.questions) == (0.0, 1)


def test_after_a_long_wait_short_ones_are_noticed_soon() -> None:
    """A peer that was slow for once."""
    waits = Waits()
    for _ in range(40):
        waits.one(0.005)
    waits.one(2.0)
    assert [waits.one(0.005) <= 0.002 for _ in range(3)] == [True] * 3


def test_waits_that_have_become_shorter_are_noticed_soon_from_the_second_on() -> None:
    waits = Waits()
    for _ in range(40):
        waits.one(0.015)
    waits.one(0.002)
    assert waits.one(0.002) <= 0.015
    assert [waits.one(0.002) <= 0.001 for _ in range(20)][-1]
