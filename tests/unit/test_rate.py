"""Learning rates that follow the global batch."""

from __future__ import annotations

import math

import pytest
import torch

from edl.errors import UsageError
from edl.runtime.rate import FollowingRate
from edl.torch.optimizer import _rates_times


def test_the_first_factor_is_there_at_once() -> None:
    assert FollowingRate("linear", 64).at(1, 128) == 2.0
    assert FollowingRate("sqrt", 64).at(1, 128) == math.sqrt(2)
    assert FollowingRate("none", 64).at(1, 128) == 1.0
    assert FollowingRate(lambda k: 1 + k, 64).at(1, 128) == 3.0


def test_a_change_takes_some_steps_and_turns_where_it_is() -> None:
    rate = FollowingRate("linear", 64, steps=4)
    assert [rate.at(step, 64) for step in (1, 2, 3)] == [1.0] * 3
    assert not rate.is_settled(3)
    assert [rate.at(step, 128) for step in (4, 5)] == [1.25, 1.5]
    assert [rate.at(step, 64) for step in (6, 7, 8, 9, 10)] == [1.375, 1.25, 1.125, 1.0, 1.0]
    assert rate.is_settled(9)


def test_a_newcomer_joins_where_the_others_are() -> None:
    one, newcomer = FollowingRate("linear", 64), FollowingRate("linear", 64)
    one.at(1, 64)
    one.at(2, 128)
    newcomer.at(1, 32)  # its rehearsal, alone
    newcomer.load_state_dict(one.state_dict())
    assert [newcomer.at(step, 192) for step in range(3, 15)] == [one.at(step, 192) for step in range(3, 15)]


@pytest.mark.parametrize(
    ("rule", "base", "steps", "said"),
    [
        ("cubic", 64, 8, "cubic"),
        (3, 64, 8, "function of k"),
        ("linear", 0, 8, "base_batch=0"),
        ("sqrt", 1, -1, "steps"),
    ],
)
def test_a_wrong_wish_is_refused(rule, base, steps, said) -> None:
    with pytest.raises(UsageError, match=said):
        FollowingRate(rule, base, steps)


def test_a_rule_that_gives_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="positive"):
        FollowingRate(lambda _: 0.0, 64).at(1, 64)


def test_torch_is_scaled_for_the_update_alone() -> None:
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([{"params": [weight], "lr": 0.5}], lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)
    weight.grad = torch.ones(2)
    with _rates_times(optimizer, 3.0):
        optimizer.step()
    assert weight.tolist() == [-1.5, -1.5]
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)
