"""Keras's metrics as numbers that can be added up over workers.

Owns: reading and writing them. Does not own: when, and asking the others (`edl.tensorflow.fit_position`,
`edl.tensorflow.keras_validation`).

All metrics of Keras are made of sums: totals and counts, or confusion matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
    """The sum of what workers have counted, in the order of their ranks; of those that have no metrics yet nothing."""
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
