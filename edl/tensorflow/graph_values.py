"""Numbers of a step that a graph of TensorFlow reads or writes: the gradient's weight, the rate's factor, the noise.

Owns: the variables that graphs read, taking the norms and giving them to all, in graphs too. Does not own: in which
steps the noise is measured (`edl.trainer.learning_rates`), nor what follows from the norms (`edl.policy.learning`).

A traced function reads from a variable of ours whether its step is measured; then all workers read the same, as there
is one all-reduce more in such a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.python.eager import context

from edl.collectives.ring_port import GradientWeight
from edl.errors import UsageError
from edl.policy.learning import of_step

# The share that this worker has of the samples, where TensorFlow can read it.


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
        """Return the scale as two numbers in the graph that is being built.

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
        """Make the variable beforehand: a function that was traced before without a reduction may not make one any
        more.
        """
        if self._variable is None:
            with tf.init_scope(), tf.device("CPU:0"):  # what branches by it looks there
                self._variable = tf.Variable(self._scale, trainable=False, dtype=tf.float32, name="edl_share")
                self._variable.assign(self._scale)  # the first takes half a millisecond, and all wait for a newcomer's

    def _told(self, before: Callable[[], None]) -> NDArray[np.float32]:
        before()
        return np.array(self._scale, np.float32)


# The factor of learning rates, where TensorFlow can read it: 1.0 until a script asks for something else.


class TensorRate:
    """A factor of learning rates. Traced functions and graphs read it anew in each step, if they were traced after it
    came into use.
    """

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
        if not self.used:
            return rate
        if not tf.compat.v1.executing_eagerly_outside_functions():
            factor = tf.numpy_function(lambda: np.float32(self._value), [], tf.float32, stateful=True)
            factor.set_shape(())
        else:
            factor = self._variable.read_value()
        return tf.convert_to_tensor(rate) * tf.cast(factor, tf.convert_to_tensor(rate).dtype)


class PacedKeras:
    """A mixin for the class of a Keras optimizer that applies updates itself. `learning_rate` stays what it was."""

    _edl_rate: TensorRate | None = None

    def _backend_update_step(self, grads: Any, trainable_variables: Any, learning_rate: Any) -> None:
        if self._edl_rate is not None:
            learning_rate = self._edl_rate.times(learning_rate)
        super()._backend_update_step(grads, trainable_variables, learning_rate)  # type: ignore[misc]


class PacedV1:
    """A mixin for the class of an optimizer of TensorFlow 1, which takes its rate when it prepares an update."""

    _edl_rate: TensorRate | None = None

    def _prepare(self) -> None:
        super()._prepare()  # type: ignore[misc]
        for name in ("_learning_rate_tensor", "_lr_t"):
            if self._edl_rate is not None and getattr(self, name, None) is not None:
                setattr(self, name, self._edl_rate.times(getattr(self, name)))


WEIGHTLESS = [0.0, 0.0, 0.0]


class TensorNoise:
    """Norms of all gradients of one step, however many optimizers they are for."""

    def __init__(self) -> None:
        self._asked = self._expected = False
        self._due: Any = None
        self._heard: Any = None  # sums over what was averaged: own norms, inverse shares, who has one, whole norms, 1

    def use(self) -> None:
        """Steps may be measured. Raises UsageError where that cannot be."""
        if not tf.executing_eagerly():
            raise UsageError(
                "the gradient noise is not measured in graphs of TensorFlow 1: take edl.scale_rate('linear') there"
            )
        self._asked = True
        with tf.device("CPU:0"):
            self._due = tf.Variable(False, trainable=False, name="edl_noise_due")
            self._heard = tf.Variable(tf.zeros(5, tf.float64), trainable=False, name="edl_noise")

    def expect(self, due: bool) -> None:
        """Say whether the coming step is measured. Where rates follow a schedule, each step asks."""
        if not due and not self._expected:
            return
        self._expected = due
        with context.eager_mode():
            self._due.assign(due)
            if due:
                self._heard.assign(tf.zeros(5, tf.float64))

    def measure(self, own: Sequence[Any], averaged: Sequence[Any], weight: Any, name: str) -> list[Any]:
        """Measure the norms of these gradients, as they were found here and as they are averaged, if the step is one
        for that. The returned tensors are there once all have been told. `weight`: of this worker.
        """
        if not self._asked:
            return []
        if tf.executing_eagerly():
            return [self._told(own, averaged, tf.constant(weight, tf.float32), name)] if self._expected else []
        told = tf.cond(self._due, lambda: self._told(own, averaged, weight, name), lambda: tf.constant(False))
        return [told]

    def _told(self, own: Sequence[Any], averaged: Sequence[Any], weight: Any, name: str) -> Any:
        """A worker without samples has no gradients of its own. All hear the same numbers, also where their devices
        round otherwise: the learning rate may follow them.
        """
        share, one = tf.cast(weight, tf.float64), tf.ones((), tf.float64)
        mine = tf.where(share > 0, tf.stack([_squares(own), one / share, one]), tf.constant(WEIGHTLESS, tf.float64))
        numbers = tf.concat([mine, tf.stack([_squares(averaged), one])], 0)
        heard = hvd._allreduce(numbers, op=hvd.Average, name=name, ignore_name_scope=True)
        with tf.control_dependencies([self._heard.assign_add(heard)]):
            return tf.constant(True)

    def take(self, parts: int) -> tuple[float, float] | None:
        """Return `edl.policy.learning.of_step` of the newest step; None where not all of so many parts were averaged in
        it.
        """
        own, inverse, having, whole, count = self._heard.numpy().tolist()
        if count < parts or not having:
            return None
        return of_step(own * count / having, inverse / having, whole)


def _squares(gradients: Sequence[Any]) -> Any:
    """Return the squared norm of all of them together."""
    norms = [tf.reduce_sum(tf.square(_single(_summed(one)))) for one in gradients]
    with tf.device("/CPU:0"):
        return tf.add_n([tf.cast(norm, tf.float64) for norm in norms])


def _single(values: Any) -> Any:
    return tf.cast(values, tf.float32) if values.dtype.size < tf.float32.size else values


def _summed(gradient: Any) -> Any:
    """Sum up the rows of a sparse gradient: it has one for each time that it was looked at, and after averaging those
    of all workers.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    rows, of_row = tf.unique(gradient.indices)
    return tf.math.unsorted_segment_sum(gradient.values, of_row, tf.size(rows))
