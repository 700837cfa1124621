"""The share that this worker has of the samples, where TensorFlow can read it.

Owns: the share as a value of TensorFlow. Does not own: what it is (`edl.collectives.ring_port`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.python.eager import context

from edl.collectives.ring_port import GradientWeight


class Scale(NamedTuple):
    factor: float  # before they are averaged over the ring: 1.0 where all have as many samples
    weight: float  # before they are summed up


class TensorShare(GradientWeight):
    """A share that traced functions and graphs read anew in each step."""

    def __init__(self, size: Callable[[], int]) -> None:
        """`size`: of the ring, when the weight is set."""
        super().__init__()
        self._size = size
        self._variable: Any = None
        self._scale = Scale(1.0, 1.0)
        self._assigned: Scale | None = None  # to the variable, since it was made
        self.value = 1.0

    def set(self, weight: float, *, weightless: bool = False) -> None:
        super().set(weight, weightless=weightless)
        self.value = weight
        self._scale = Scale(self.factor(self._size()), weight)
        if self._variable is not None and self._scale != self._assigned:
            with context.eager_mode():  # the script may be inside of a graph of its own
                self._variable.assign(self._scale)
            self._assigned = self._scale

    def tensor(self, before: Callable[[], None]) -> Any:
        """The scale as two numbers in the graph that is being built.

        A traced function captures a variable of ours. A graph of TensorFlow 1 cannot: a variable in it would be the
        script's to initialize, and would turn up in its checkpoints. It calls back instead, and `before` with it.
        """
        if not tf.compat.v1.executing_eagerly_outside_functions():
            scale = tf.numpy_function(lambda: self._told(before), [], tf.float32, stateful=True)
            scale.set_shape((2,))
            return scale
        before()
        self.create()
        return self._variable.read_value()

    def create(self) -> None:
        """The variable, beforehand: a function that was traced before without a reduction may not make one any more."""
        if self._variable is None:
            with tf.init_scope(), tf.device("CPU:0"):  # what branches by it looks there
                self._variable = tf.Variable(self._scale, trainable=False, dtype=tf.float32, name="edl_share")
                self._variable.assign(self._scale)  # the first takes half a millisecond, and all wait for a newcomer's

    def _told(self, before: Callable[[], None]) -> NDArray[np.float32]:
        before()
        return np.array(self._scale, np.float32)
