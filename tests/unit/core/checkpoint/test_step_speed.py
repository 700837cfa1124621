"""What a checkpoint takes of the pace of training, as a leader sees it."""

from __future__ import annotations

import random
from statistics import median

import pytest

from edl.core.checkpoint.step_speed import STRETCHES, SavingPace


class Training:
    """Reports come each 0.3 s, at any point of a step."""

    def __init__(self, step_s: float = 0.1, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.pace, self.now, self.done, self.step_s, self.generation = SavingPace(1.8), 0.0, 0.0, step_s, 1

    def train(self, seconds: float, slower: float = 1.0, *, look: bool = True) -> None:
        until = self.now + seconds
        while self.now < until:
            gap = 0.2 + 0.2 * self.random.random()
            self.now += gap
            self.done += gap / (self.step_s * slower)
            if look:
                self.pace.look(self.generation, self.seen)

    @property
    def seen(self) -> tuple[int, float]:
        return int(self.done), self.now

    def save(self, seconds: float, slower: float) -> float | None:
        self.pace.begin(self.generation, self.seen)
        self.train(seconds, slower, look=False)
        return self.pace.end(self.generation, self.seen)


@pytest.mark.parametrize("step_s", [0.004, 0.1, 1.3])
@pytest.mark.parametrize("slower", [1.0, 1.5])
def test_the_middle_of_several_is_what_was_lost(step_s: float, slower: float) -> None:
    found = []
    for seed in range(9):
        training = Training(step_s, seed)
        for _ in range(5):
            training.train(20.0)
            before, began = training.done, training.now
            lost = training.save(2.0, slower)
            assert lost is not None
            found.append(lost - ((training.now - began) - (training.done - before) * step_s))
    assert abs(median(found)) < 0.25 * step_s + 0.02


def test_an_evaluation_between_two_does_not_count() -> None:
    training = Training()
    training.train(10.0)
    training.now += 30.0
    training.train(10.0)
    assert training.pace.step_time_s == pytest.approx(0.1, rel=0.1)


def test_what_another_ring_made_says_nothing() -> None:
    training = Training()
    training.train(10.0)
    training.pace.begin(1, training.seen)
    training.generation = 2
    training.train(2.0, look=False)
    assert training.pace.end(2, training.seen) is None
    assert training.pace.step_time_s is None
    training.train(10.0, slower=3.0)
    assert training.pace.step_time_s == pytest.approx(0.3, rel=0.15)


def test_a_leader_that_has_not_seen_it_begin_says_nothing() -> None:
    training = Training()
    assert training.pace.end(1, training.seen) is None
    training.train(10.0)
    assert training.pace.end(1, training.seen) is None


def test_it_forgets() -> None:
    training = Training()
    training.train(20.0)
    training.train(2.5 * STRETCHES, slower=2.0)
    assert training.pace.step_time_s == pytest.approx(0.2, rel=0.1)
