"""Settings of a Lightning Trainer: which ones edl refuses, and after how many batches something is due.

Owns: these rules. Does not own: what the strategy makes of them (`edl.lightning.strategy`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    Callback,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelCheckpoint,
    StochasticWeightAveraging,
    Timer,
)
from lightning.pytorch.callbacks.timer import Interval

from edl.errors import UsageError

_BEFORE = "it makes trainings of its own first: let it look in a script without edl, and write down what it finds"
_REFUSED: Mapping[type[Callback], str] = {  # with the remedy
    GradientAccumulationScheduler: "how many batches make a step is the same in a whole job: say "
    "Trainer(accumulate_grad_batches=...)",
    StochasticWeightAveraging: "it changes the schedule and the loop of a worker, and a newcomer would have others; "
    "WeightAveraging averages weights, and goes with it",
    LearningRateFinder: _BEFORE,
    BatchSizeFinder: _BEFORE,
}


def check_fit(trainer: Any, *, virtual: bool = False) -> None:
    """Raise UsageError for settings of a fit that do not go with strategy='edl', or with virtual workers."""
    if virtual and not trainer.lightning_module.automatic_optimization:
        raise UsageError(
            "automatic_optimization=False: a module that makes updates by itself cannot take the parts of virtual "
            "workers: let Lightning make them, or start the job without --virtual-workers"
        )
    if trainer.ckpt_path is not None:
        raise UsageError(
            "Trainer.fit(ckpt_path=...): a job goes on at the exact sample by `edl run --checkpoint`; for weights "
            "alone, LightningModule.load_from_checkpoint()"
        )
    refused = {
        "overfit_batches": (trainer.overfit_batches > 0, "train on a torch.utils.data.Subset"),
        "reload_dataloaders_every_n_epochs": (
            trainer.reload_dataloaders_every_n_epochs > 0,
            "a job trains on one source: leave it away",
        ),
        "val_check_interval": (
            trainer._val_check_time_interval is not None,
            "by the clock, workers validate at different batches: give a number of batches",
        ),
    }
    for name, (given, remedy) in refused.items():
        if given:
            raise UsageError(f"Trainer({name}=...) does not go with strategy='edl': {remedy}")
    for kind, remedy in _REFUSED.items():
        if any(isinstance(one, kind) for one in trainer.callbacks):
            raise UsageError(f"{kind.__name__} does not go with strategy='edl': {remedy}")
    if (virtual or trainer.accumulate_grad_batches > 1) and (timed := _asks_the_clock(trainer.callbacks)):
        given = "virtual workers" if virtual else f"Trainer(accumulate_grad_batches={trainer.accumulate_grad_batches})"
        raise UsageError(
            f"{given} and {timed} do not go together "
            "with strategy='edl': workers tell each other the time at each batch, and may have different numbers "
            "of them in a step; leave one away"
        )


def batches_between_validations(trainer: Any) -> float:
    """Return the batches between two validations, in whole steps; infinity for the end of each epoch. A whole 1 is each
    batch.
    """
    if isinstance(trainer.val_check_interval, float) and trainer.val_check_interval == 1.0:
        return math.inf
    parts_of_step: int = trainer.accumulate_grad_batches
    given: float = trainer.val_check_batch
    return given if math.isinf(given) else math.ceil(given / parts_of_step) * parts_of_step


def epoch_limit(trainer: Any) -> float:
    """Return the batches of an epoch, if the script limits them; else infinity."""
    limits = trainer.fit_loop._combined_loader.limits
    if trainer.limit_train_batches == 1.0 or not limits:
        return math.inf
    found: float = limits[0]
    return found


def _asks_the_clock(callbacks: list[Any]) -> str:
    """Name the callback that looks at the clock at each batch, in the script's words; else ""."""
    for one in callbacks:
        if isinstance(one, ModelCheckpoint) and one._train_time_interval is not None:
            return "ModelCheckpoint(train_time_interval=...)"
        if isinstance(one, Timer) and one._duration is not None and one._interval == Interval.step:
            return "max_time, or Timer(interval='step'),"
    return ""
