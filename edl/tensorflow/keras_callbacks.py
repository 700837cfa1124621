"""Callbacks by Horovod's names, on edl's own: `edl.tensorflow.keras.callbacks`, and those of its module `elastic`.

Owns: what such a callback means where workers come and go. Does not own: the end of a batch and of an epoch
(`edl.tensorflow.keras_fit`), nor learning rates that follow the samples (`edl.trainer.learning_rates`).

Horovod's callbacks count batches and epochs on each worker. A newcomer has counted others, so learning rates and values
would come to differ. Here they follow what all workers see alike: the samples trained, and the epoch of the job.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import keras

from edl.errors import UsageError
from edl.tensorflow.keras_fit import ElasticFit
from edl.tensorflow.tf_process import trainer


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """A callback that has nothing to do: all workers begin with rank 0's model, and newcomers with that of the job."""

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:  # noqa: ARG002 - Horovod's
        super().__init__()
        if root_rank != 0:
            raise UsageError(
                f"BroadcastGlobalVariablesCallback({root_rank}): all workers begin with rank 0's model: say 0, and "
                "load what is to be loaded on all of them"
            )
        if local_variables is not None and len(local_variables):
            raise UsageError(
                "BroadcastGlobalVariablesCallback(local_variables=...): a newcomer would have none: leave it away"
            )


class MetricAverageCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """A callback that has nothing to do where edl deals out the data: the metrics of each epoch are those of all
    workers.
    """

    def __init__(self, device: str = "") -> None:  # noqa: ARG002 - Horovod's signature
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002 - Keras's signature
        if trainer.size() > 1 and trainer.shards is None:
            raise UsageError(
                "MetricAverageCallback: workers come to an end of an epoch together only where edl deals out the data: "
                "train on edl.elastic_dataset(...), or average by hvd.allreduce where all are at the same step"
            )


class _Rates:
    """The rule that `edl.schedule_rate` is given for all learning-rate callbacks of one `fit`: a factor by progress."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs
        self.callbacks: list[LearningRateScheduleCallback] = []

    def __call__(self, progress: float) -> float:
        """Return the factor of the optimizer's own rate, which is the first callback's `initial_lr`."""
        epoch, rate = min(progress * self.epochs, math.nextafter(self.epochs, 0)), self.callbacks[0].initial_lr
        for one in self.callbacks:
            if epoch >= one.start_epoch:
                rate = one.rate_at(epoch)
        return rate / self.callbacks[0].initial_lr


_rates: list[_Rates] = []  # of this process's training


class LearningRateScheduleCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Set the learning rate, from `start_epoch` on, to `initial_lr` times what `multiplier` says of the epoch, at any
    size; from `end_epoch` on it stays as it is, unless another callback goes on. Of several the last one counts.

    The epoch goes by the samples trained (`edl.schedule_rate`), so it takes data that edl deals out. Momentum stays.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - Horovod's signature
        self,
        initial_lr: float | None,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,  # noqa: ARG002 - Keras 3 has no momentum that could be set in a step
        steps_per_epoch: int | None = None,  # noqa: ARG002 - what is trained of an epoch is known
    ) -> None:
        super().__init__()
        if initial_lr is None or initial_lr <= 0:
            raise UsageError(f"{type(self).__name__}(initial_lr={initial_lr!r}): give the rate, a number above 0")
        self.initial_lr = float(initial_lr)
        self.start_epoch, self.end_epoch, self.staircase = start_epoch, end_epoch, staircase
        self.multiplier = multiplier if callable(multiplier) else _falling(multiplier, start_epoch)

    def set_params(self, params: dict[str, Any]) -> None:
        """Schedule the rate for as many epochs as Keras says here, before the first batch."""
        super().set_params(params)
        if not _rates:
            _rates.append(rates := _Rates(params["epochs"]))
            trainer.rates.schedule_rate(rates, params["epochs"])
        rates = _rates[0]
        if rates.epochs != params["epochs"]:
            raise UsageError(
                f"{type(self).__name__}: fit() for {params['epochs']} epochs after one for {rates.epochs}: a job has "
                "one schedule: take edl.schedule_rate()"
            )
        if self not in rates.callbacks:
            rates.callbacks.append(self)
        self.model.optimizer.learning_rate = rates.callbacks[0].initial_lr

    def rate_at(self, epoch: float) -> float:
        """Return the rate at `epoch`, which may have a fraction, and may be past this callback's end."""
        within = epoch if self.end_epoch is None else min(epoch, math.nextafter(self.end_epoch, 0))
        return self.initial_lr * self.multiplier(math.floor(within) if self.staircase else within)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raise the learning rate in a straight line, over the first `warmup_epochs`, from `initial_lr` divided by the
    workers to `initial_lr`.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,  # noqa: ARG002 - Horovod's signature
    ) -> None:
        def multiplier(epoch: float) -> float:
            size = trainer.size()
            return (epoch * (size - 1) / warmup_epochs + 1) / size

        super().__init__(initial_lr, multiplier, 0, warmup_epochs, False, momentum_correction, steps_per_epoch)


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """Keras's `ModelCheckpoint` of the best model, written by rank 0. Give it a path: `callback.filepath = ...`."""

    def __init__(
        self, monitor: str = "val_loss", verbose: int = 0, mode: str = "auto", save_freq: Any = "epoch"
    ) -> None:
        super().__init__(
            "best_model.keras", monitor=monitor, verbose=verbose, save_best_only=True, mode=mode, save_freq=save_freq
        )


def CommitStateCallback(state: Any, batches_per_commit: int = 1) -> ElasticFit:  # noqa: N802, ARG001 - Horovod's
    """`edl.KerasCallback()`: the end of each batch. To look whether workers have come or gone is free, and no model is
    copied, so `batches_per_commit` has nothing to save.
    """
    import edl.tensorflow

    return edl.tensorflow.KerasCallback()


class UpdateBatchStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """`state.batch` is how many batches of the epoch this call of `fit` has begun, the same on all workers."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002 - Keras's
        self.state.batch += 1  # from what came with the state: a newcomer's own count of batches is another

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002 - Keras's
        self.state.batch = 0


class UpdateEpochStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """`state.epoch` is how many epochs of `fit` are over, the same on all workers."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002 - Keras's
        self.state.epoch = epoch

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002 - Keras's
        self.state.epoch = epoch + 1


def _falling(multiplier: float, start_epoch: int) -> Callable[[float], float]:
    return lambda epoch: float(multiplier ** (epoch - start_epoch))
