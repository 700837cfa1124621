"""What the strategy refuses, as it asks the clock of each worker; and when gradients are averaged."""

from __future__ import annotations

import math
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelCheckpoint,
    StochasticWeightAveraging,
    Timer,
)
from lightning.pytorch.strategies.strategy import Strategy
from lightning.pytorch.trainer.states import TrainerFn

from edl.config.settings import Settings
from edl.errors import UsageError
from edl.lightning.strategy import EdlStrategy, batches_between_validations, check_fit
from edl.torch.torch_process import trainer as seat


def strategy() -> Any:
    """Of no job."""
    return EdlStrategy.__new__(EdlStrategy)


def made_with(**settings: Any) -> pl.Trainer:
    trainer = pl.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, **settings)
    trainer.ckpt_path = None
    return trainer


def test_a_fit_of_no_special_wishes_is_taken() -> None:
    check_fit(made_with())


def test_validation_by_the_clock_is_refused() -> None:
    trainer = made_with(val_check_interval=timedelta(minutes=5))
    trainer.state.fn = TrainerFn.FITTING
    with pytest.raises(UsageError, match="give a number of batches") as caught:
        strategy().setup(trainer)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"max_time": "00:01:00:00"}, "max_time"),
        ({"callbacks": [Timer("00:01:00:00")]}, "max_time"),
        ({"callbacks": [ModelCheckpoint(train_time_interval=timedelta(minutes=5))]}, "train_time_interval"),
    ],
)
def test_the_time_at_each_batch_does_not_go_with_parts_of_a_step(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named) as caught:
        check_fit(made_with(accumulate_grad_batches=2, **settings))
    assert "\n" not in str(caught.value)
    check_fit(made_with(**settings))


@pytest.mark.parametrize(
    ("interval", "batch", "parts", "wanted"),
    [(1.0, 12, 1, math.inf), (None, 12, 1, math.inf), (1, 1, 1, 1), (1, 1, 4, 4), (0.5, 6, 4, 8), (3, 3, 1, 3)],
)
def test_validations_come_at_the_end_of_steps(interval: Any, batch: int, parts: int, wanted: float) -> None:
    trainer = made_with(val_check_interval=interval, accumulate_grad_batches=parts)
    trainer.val_check_batch = batch
    assert batches_between_validations(trainer) == wanted


def test_a_module_that_makes_updates_by_itself_does_not_go_with_virtual_workers() -> None:
    trainer = made_with()
    trainer.strategy.connect(pl.LightningModule())
    check_fit(trainer, virtual=True)
    trainer.lightning_module.automatic_optimization = False
    check_fit(trainer)
    with pytest.raises(UsageError, match="let Lightning make them, or start the job without --virtual-workers"):
        check_fit(trainer, virtual=True)


def test_a_training_step_of_virtual_workers_asks_no_other_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers have different numbers of virtual workers, and the others would wait for ever."""
    made, seen = strategy(), []
    monkeypatch.setattr(seat.seating, "settings", Settings(virtual_workers=4))
    monkeypatch.setattr(Strategy, "training_step", lambda _: seen.append(made.reduce(torch.ones(()))) or torch.ones(()))
    made._words = SimpleNamespace(reduced=lambda value, _: value)
    made._in_training_step = False
    with pytest.raises(UsageError, match=r"sync_dist=True.*have different numbers of virtual workers"):
        made.training_step()
    assert made.reduce(torch.ones(())) and not seen


def test_other_numbers_of_batches_in_a_step_are_refused() -> None:
    with pytest.raises(UsageError, match="accumulate_grad_batches") as caught:
        check_fit(made_with(callbacks=[GradientAccumulationScheduler({0: 2})]))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("callback", "remedy"),
    [
        (StochasticWeightAveraging(swa_lrs=0.01), "WeightAveraging averages"),
        (LearningRateFinder(), "in a script without edl"),
        (BatchSizeFinder(), "in a script without edl"),
    ],
)
def test_a_callback_that_changes_the_training_of_one_worker_is_refused(callback: pl.Callback, remedy: str) -> None:
    with pytest.raises(UsageError, match=remedy) as caught:
        check_fit(made_with(callbacks=[callback]))
    assert str(caught.value).startswith(f"{type(callback).__name__} does not go with strategy='edl': ")
    assert "\n" not in str(caught.value)


def test_a_worker_that_leaves_a_batch_out_goes_on_with_a_loss_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    one, module = strategy(), pl.LightningModule()
    one.connect(module)
    given = iter([None, torch.tensor(2.0), None])
    monkeypatch.setattr(Strategy, "training_step", lambda *_: next(given))
    monkeypatch.setattr(EdlStrategy, "root_device", torch.device("cpu"))
    loss = one.training_step()
    loss.backward()
    assert loss.item() == 0.0
    assert one.training_step().item() == 2.0
    module.automatic_optimization = False
    assert one.training_step() is None


def test_the_time_at_each_epoch_goes_with_them() -> None:
    check_fit(made_with(accumulate_grad_batches=2, callbacks=[Timer("00:01:00:00", interval="epoch")]))


class AveragedSGD(torch.optim.SGD):
    """As edl has made it."""

    happened: list[str]

    def synchronize(self) -> None:
        self.happened.append("averaged")


AveragedSGD.__module__ = "torch.optim.sgd"  # where edl's class says that it is


class PrecisionThatLooks:
    """At gradients, between the closure and the update."""

    def optimizer_step(self, optimizer: AveragedSGD, model: object, closure: Any) -> Any:
        result = closure()
        optimizer.happened.append("looked at")
        self.leaves_out = result is None
        return result


@pytest.mark.parametrize("loss", [None, torch.tensor(1.0)])
def test_gradients_are_averaged_before_they_are_clipped_also_on_a_worker_without_a_loss(loss: Any) -> None:
    one, optimizer = strategy(), AveragedSGD([torch.zeros(1, requires_grad=True)])
    optimizer.happened = []
    one.precision_plugin = PrecisionThatLooks()

    def closure() -> Any:
        optimizer.happened.append("backward")
        return loss

    assert one.optimizer_step(optimizer, closure, pl.LightningModule()) is loss
    assert optimizer.happened == ["backward", "averaged", "looked at"]
    assert not one.precision_plugin.leaves_out


def test_a_second_trainer_in_a_job_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one's strategy has trained all that the job has: another one would find nothing, and say nothing."""
    monkeypatch.setattr(EdlStrategy, "_trains", strategy())
    second = made_with()
    second.state.fn = TrainerFn.FITTING
    with pytest.raises(UsageError, match="one fit; start another job"):
        strategy().setup(second)
