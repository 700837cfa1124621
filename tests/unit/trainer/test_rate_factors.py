"""Learning rates that follow the global batch, and schedules of them."""

from __future__ import annotations

import math
from typing import Any, cast

import pytest
import torch

from edl.errors import UsageError
from edl.policy.learning import Knee, Warmup
from edl.protocol.data_nouns import DataSpec
from edl.torch.optimizer import _rates_times
from edl.trainer.learning_rates import FollowingRate, ScheduledRate


def test_the_first_factor_is_there_at_once() -> None:
    assert FollowingRate("linear", 64).at(1, 128) == 2.0
    assert FollowingRate("sqrt", 64).at(1, 128) == math.sqrt(2)
    assert FollowingRate("none", 64).at(1, 128) == 1.0
    assert FollowingRate(lambda k: 1 + k, 64).at(1, 128) == 3.0


def test_a_change_takes_some_steps_and_turns_where_it_is() -> None:
    rate = FollowingRate("linear", 64, steps=4)
    assert [rate.at(step, 64) for step in (1, 2, 3)] == [1.0] * 3
    assert not rate.is_settled(3, 64)
    assert [rate.at(step, 128) for step in (4, 5)] == [1.25, 1.5]
    assert [rate.at(step, 64) for step in (6, 7, 8, 9, 10)] == [1.375, 1.25, 1.125, 1.0, 1.0]
    rate.count(64)
    assert rate.is_settled(9, 64)
    assert not rate.is_settled(9, 128)  # it will be another one soon


def test_what_counts_is_the_batch_that_is_made() -> None:
    rate = FollowingRate("linear", 64, steps=0)
    assert rate.at(1, 64) == 1.0
    rate.count(64)
    assert rate.at(2, 256) == 1.0  # there are four workers now, and samples for one
    rate.count(256)
    assert rate.at(3, 256) == 4.0
    rate.count(0)  # of a step whose workers had left
    assert rate.at(4, 256) == 4.0


def test_a_newcomer_joins_where_the_others_are() -> None:
    one, newcomer = FollowingRate("linear", 64), FollowingRate("linear", 64)
    one.at(1, 64)
    one.count(128)
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


TOLD = DataSpec(total=100, epochs=2, batch=10)


def scheduled(schedule, epochs=None, told=TOLD) -> ScheduledRate:
    rate = ScheduledRate(schedule, epochs)
    rate.begin(told)
    return rate


def test_progress_is_that_of_the_samples_of_all_epochs() -> None:
    rate = scheduled(lambda progress: progress)
    assert rate.at(10) == 0.025  # the middle of samples 0 to 10 of 200
    rate.count(10)
    assert rate.at(10) == 0.075
    assert rate.at(20) == 0.1  # a void step is asked for again, perhaps by more workers
    rate.count(20)
    assert rate.at(20) == 0.2
    rate.count(170)
    assert rate.at(20) == 1.0  # there is no more


def test_a_short_step_counts_for_what_it_has() -> None:
    rate = scheduled(lambda progress: progress)
    for samples in (40, 40, 20):  # the last step of the epoch
        rate.count(samples)
    assert rate.at(40) == 0.6


def test_a_newcomer_joins_the_schedule_where_the_others_are() -> None:
    one, newcomer = scheduled(Knee(0.3, 0.2)), scheduled(Knee(0.3, 0.2))
    for _ in range(13):
        one.count(10)
    newcomer.load_state_dict(one.state_dict())
    for batch in (10, 20, 20):
        assert newcomer.at(batch) == one.at(batch) < 1
        one.count(batch)
        newcomer.count(batch)


def test_the_knee_goes_up_stays_and_goes_down() -> None:
    knee = Knee(explore=0.5, warmup=0.1)
    assert [knee.at(progress) for progress in (0.0, 0.05, 0.1, 0.6)] == [0.0, 0.5, 1.0, 1.0]
    assert knee.at(0.8) == pytest.approx(0.5)
    assert knee.at(1.0) == 0.0
    assert [Knee(explore=1).at(progress) for progress in (0.0, 1.0)] == [1.0, 1.0]
    assert [Warmup(0.5).at(progress) for progress in (0.0, 0.25, 0.5, 1.0)] == [0.0, 0.5, 1.0, 1.0]
    assert Warmup(0).at(0.0) == 1.0


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Knee(40), r"edl.Knee\(explore=40\).*0.0 to 1.0"),
        (lambda: Knee(0.8, 0.3), "explore and warmup are more than all"),
        (lambda: Warmup(-0.1), r"warmup=-0.1"),
        (lambda: Warmup(cast("Any", "5%")), "warmup='5%'"),
        (lambda: Warmup(True), "warmup=True"),
        (lambda: ScheduledRate(cast("Any", 0.5)), r"schedule_rate\(0.5\): give it edl.Knee"),
        (lambda: ScheduledRate(cast("Any", Knee)), "give it edl.Knee"),
        (lambda: ScheduledRate(Knee(0.4), 0), "epochs=0"),
        (lambda: ScheduledRate(Knee(0.4), cast("Any", 1.5)), "epochs=1.5"),
        (lambda: scheduled(lambda _: -1.0).at(10), "gives -1.0 at 0.025"),
        (lambda: scheduled(lambda _: math.nan).at(10), "gives nan"),
        (lambda: scheduled(lambda _: math.inf).at(10), "gives inf"),
        (lambda: scheduled(lambda _: None).at(10), "gives None"),
    ],
)
def test_a_wrong_schedule_is_refused(make, said) -> None:
    with pytest.raises(UsageError, match=said):
        make()


@pytest.mark.parametrize(
    "open_end",
    [DataSpec(100, 1, 10, open_ended=True), DataSpec(100, 1, 10, by_sample=True, whole_epochs=True)],
    ids=["batches", "sample by sample"],
)
def test_where_the_end_is_open_the_schedule_must_know_it(open_end) -> None:
    with pytest.raises(UsageError, match=r"schedule_rate\(..., epochs=90\)"):
        scheduled(lambda progress: progress, None, open_end)
    assert scheduled(lambda progress: progress, 2, open_end).at(10) == 0.025
    stream = DataSpec(100, 2, 10, by_sample=True, whole_epochs=False)
    assert scheduled(lambda progress: progress, None, stream).at(10) == 0.025


@pytest.mark.integration  # imports PyTorch: not for scripts/check
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
