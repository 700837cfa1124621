"""Keras's validation inside of `fit`, shared out among all workers, and the metrics of an epoch added up over them.

Owns: which batches of a validation set are a unit, computing them by Keras's own test step, and metrics as numbers that
can be added up: all metrics of Keras are made of sums, of totals and counts, or of confusion matrices. Does not own:
who computes which (`edl.core.worker.evaluation_shares`), nor when (`edl.tensorflow.keras_fit`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from edl.errors import UsageError

Numbers = NDArray[np.float64]


def counted(model: Any) -> Numbers:
    """Return what the metrics of `model` have counted, in one row; it is empty before they have their variables."""
    values = [np.asarray(variable.numpy(), np.float64).reshape(-1) for variable in _variables(model)]
    return np.concatenate(values) if values else np.zeros(0)


def count(model: Any, numbers: Numbers) -> None:
    """Set what the metrics of `model` have counted."""
    begin = 0
    for variable in _variables(model):
        value = variable.numpy()
        variable.assign(numbers[begin : begin + value.size].astype(value.dtype).reshape(value.shape))
        begin += value.size


def total(found: Sequence[bytes]) -> Numbers:
    """Return the sum of what workers have counted, in the order of their ranks; of those that have no metrics yet
    nothing.
    """
    rows = [np.frombuffer(one, np.float64) for one in found if one]
    if len({row.size for row in rows}) > 1:
        raise UsageError("model.compile(metrics=...): the workers' models have other metrics; all must have the same")
    return np.sum(rows, axis=0) if rows else np.zeros(0)


def build(model: Any, spec: Any) -> None:
    """Give the metrics their variables, on a worker that has had no batch yet: by one of zeros, which counts nothing.

    `spec`: of what `fit` is given for a step.
    """
    zeros = tf.nest.map_structure(lambda one: tf.zeros([size or 1 for size in one.shape], one.dtype), spec)
    model.make_test_function()
    model.test_function(iter([zeros]))
    model.reset_metrics()


def _variables(model: Any) -> list[Any]:
    return [variable for metric in model.metrics for variable in metric.variables]


UNITS = 840  # batch n is of unit n % 840: divides evenly among 1 to 8 workers, and 10, 12, 14 ...


class EpochTold(msgspec.Struct, frozen=True, array_like=True):
    """The counts that a worker tells at the end of an epoch."""

    counted: bytes  # of its own mini-batches
    of_all: bytes  # of all workers', as it was found with the epoch's last step; empty where it does not know


class EpochCounted:
    """`edl.trainer.shared_evaluation.Work`: nothing to compute; each worker has counted its own mini-batches."""

    units = 0

    def __init__(self, model: Any, of_all: bytes) -> None:
        self._model = model
        self._of_all = of_all

    def compute(self, units: Sequence[int], goes_on: Callable[[], bool]) -> Sequence[int]:  # noqa: ARG002 - the port's
        return units

    def found(self) -> bytes:
        return msgspec.msgpack.encode(EpochTold(counted(self._model).tobytes(), self._of_all))


def epoch_total(found: Sequence[bytes]) -> Numbers:
    """Return what all workers have counted in an epoch. Counts that were found with the epoch's last step have also
    those of workers that have left with it, or with the life before.
    """
    told = [msgspec.msgpack.decode(one, type=EpochTold) for one in found]
    known = next((one.of_all for one in told if one.of_all), b"")
    return total([known] if known else [one.counted for one in told])


class SharedValidation:
    """`edl.trainer.shared_evaluation.Work`: the batches of a validation set, through Keras's test step and its
    callbacks.

    All workers must get the same batches in the same order. Each reads all of them, and computes those of its units.
    """

    units = UNITS

    def __init__(self, model: Any, callbacks: Any, given_up: Callable[[], bool]) -> None:
        self._model = model
        self._callbacks = callbacks
        self._given_up = given_up
        self._batch = 0
        self._counted = np.zeros(0)

    def compute(self, units: Sequence[int], goes_on: Callable[[], bool]) -> Sequence[int]:  # noqa: ARG002 - the port's
        """Compute all units or none: reading of a dataset cannot be resumed."""
        if not units:
            return units
        self._count_anew()
        iterator = iter(_of_units(self._model._eval_epoch_iterator, units))
        while not self._given_up():
            self._callbacks.on_test_batch_begin(self._batch)
            try:
                logs = self._model.test_function(iterator)
            except (StopIteration, tf.errors.OutOfRangeError):
                self._counted = counted(self._model)
                return units
            self._callbacks.on_test_batch_end(self._batch, logs)
            self._batch += 1
        return ()

    def found(self) -> bytes:
        numbers: Numbers = self._counted
        return numbers.tobytes()

    def _count_anew(self) -> None:
        """Set the metrics to what is done, which may be nothing; whatever was counted in between does not count."""
        if self._counted.size:
            count(self._model, self._counted)
        else:
            self._model.reset_metrics()


def _of_units(batches: Any, units: Sequence[int]) -> Any:
    dataset = batches._distributed_dataset
    if batches.steps_per_epoch is not None:
        dataset = dataset.take(batches.steps_per_epoch)
    mine = np.zeros(UNITS, bool)
    mine[list(units)] = True
    wanted = tf.constant(mine)
    kept = dataset.enumerate().filter(lambda number, _: tf.gather(wanted, number % UNITS))
    return kept.map(lambda _, item: item)
