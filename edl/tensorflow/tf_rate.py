"""The factor of learning rates, where TensorFlow can read it: 1.0 until a script asks for something else.

Owns: that number as a value of TensorFlow, and where optimizers meet it. Does not own: what it is
(`edl.trainer.rates.rate_factors`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context


class TensorRate:
    """Traced functions and graphs read it anew in each step, if they were traced after it came into use."""

    def __init__(self) -> None:
        self.used = False
        self._value = 1.0
        self._variable: Any = None

    def use(self) -> None:
        """Scale updates from now on."""
        self.used = True
        if tf.compat.v1.executing_eagerly_outside_functions() and self._variable is None:
            with tf.init_scope():
                self._variable = tf.Variable(self._value, trainable=False, dtype=tf.float32, name="edl_rate")

    def set(self, factor: float) -> None:
        if factor == self._value:
            return
        self._value = factor
        if self._variable is not None:
            with context.eager_mode():  # the script may be inside of a graph of its own
                # What `assign` comes down to, in a third of its time: a schedule sets a rate in each step.
                tf.raw_ops.AssignVariableOp(resource=self._variable.handle, value=tf.constant(factor, tf.float32))

    def times(self, rate: Any) -> Any:
        """Multiply `rate` by the factor."""
        if not self.used:
            return rate
        if not tf.compat.v1.executing_eagerly_outside_functions():
            factor = tf.numpy_function(lambda: np.float32(self._value), [], tf.float32, stateful=True)
            factor.set_shape(())
        else:
            factor = self._variable.read_value()
        return tf.convert_to_tensor(rate) * tf.cast(factor, tf.convert_to_tensor(rate).dtype)


class PacedKeras:
    """Mixed into the class of a Keras optimizer that applies updates itself. `learning_rate` stays what it was."""

    _edl_rate: TensorRate | None = None

    def _backend_update_step(self, grads: Any, trainable_variables: Any, learning_rate: Any) -> None:
        if self._edl_rate is not None:
            learning_rate = self._edl_rate.times(learning_rate)
        super()._backend_update_step(grads, trainable_variables, learning_rate)  # type: ignore[misc]


class PacedV1:
    """Mixed into the class of an optimizer of TensorFlow 1, which takes its rate when it prepares an update."""

    _edl_rate: TensorRate | None = None

    def _prepare(self) -> None:
        super()._prepare()  # type: ignore[misc]
        for name in ("_learning_rate_tensor", "_lr_t"):
            if self._edl_rate is not None and getattr(self, name, None) is not None:
                setattr(self, name, self._edl_rate.times(getattr(self, name)))
