"""A rate that all workers look for together."""

from __future__ import annotations

import math
from typing import Any, cast

import msgspec
import pytest

from edl.errors import UsageError
from edl.protocol.assignment import Place
from edl.trainer.learning_rates import RateTuner, ScheduledRate, of_all


class FakeRing:
    """One member's end of a ring in which the others' payloads are known."""

    def __init__(self, rank: int, payloads: list[bytes]) -> None:
        self.place = Place(1, rank, len(payloads), f"w{rank}")
        self._payloads = payloads

    def broadcast(self, payload: bytes | None, root: int) -> bytes:
        assert (payload is not None) == (root == self.place.rank)
        assert payload in {None, self._payloads[root]}
        return self._payloads[root]


def parabola(best: float):
    return lambda multipliers: [(multiplier - best) ** 2 for multiplier in multipliers]


def test_the_rate_goes_to_the_lowest_mean_of_all_workers() -> None:
    tuner = RateTuner(parabola(1.0), every=5, most=0.2)
    others = parabola(1.1)(tuple(1 + 0.2 * place for place in (-1, -0.5, 0, 0.5, 1)))
    tuner.tune(5, [tuner.losses(), others])
    assert tuner.at(0.5) == pytest.approx(1.05)
    tuner.tune(10, [others, others])
    assert tuner.at(0.5) == pytest.approx(1.05 * 1.1)


def test_it_goes_no_further_than_it_may_in_one_trial() -> None:
    tuner = RateTuner(parabola(9.0), every=1, most=0.1)
    tuner.tune(1, [tuner.losses()])
    assert tuner.at(0.0) == pytest.approx(1.1)


def test_what_is_not_finite_says_nothing() -> None:
    tuner = RateTuner(parabola(0.95), every=1, most=0.1)
    tuner.tune(1, [[*tuner.losses()[:4], math.inf]])
    assert tuner.at(0.0) == pytest.approx(0.95)
    tuner.tune(2, [[math.nan, math.nan, math.nan, 1.0, 2.0]])
    assert tuner.at(0.0) == pytest.approx(0.95)


def test_it_is_due_every_so_many_steps_and_a_newcomer_knows_when() -> None:
    tuner, newcomer = RateTuner(parabola(0.97), every=5), RateTuner(parabola(0.97), every=5)
    assert [tuner.is_due(step) for step in (0, 4, 5)] == [False, False, True]
    tuner.tune(5, [tuner.losses()])
    assert not tuner.is_due(5)  # a void step does not ask again
    ScheduledRate(newcomer).load_state_dict(ScheduledRate(tuner).state_dict())
    assert newcomer.at(0.0) == tuner.at(0.0) == pytest.approx(0.97)
    assert [newcomer.is_due(step) for step in (9, 10)] == [False, True]


def test_all_workers_get_the_losses_of_all_in_the_same_order() -> None:
    losses = [[0.1, math.inf], [0.2, 1.0], [0.3, 2.0]]
    payloads = [msgspec.msgpack.encode(one) for one in losses]
    assert [of_all(cast("Any", FakeRing(rank, payloads)), losses[rank]) for rank in range(3)] == [losses] * 3


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: RateTuner(cast("Any", 0.1), 5), "function of multipliers"),
        (lambda: RateTuner(parabola(1.0), 0), "every=0"),
        (lambda: RateTuner(parabola(1.0), 5, 1.5), "most=1.5"),
        (lambda: RateTuner(lambda multipliers: [1.0], 5).losses(), "1 losses for 5 multipliers"),
        (lambda: RateTuner(cast("Any", lambda multipliers: None), 5).losses(), "losses_at"),
    ],
)
def test_a_wrong_tuner_is_refused(make, said) -> None:
    with pytest.raises(UsageError, match=said):
        make()
