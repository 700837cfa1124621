"""How long a graph waits for its peers: from this worker's last gradient until all have come back averaged.

Owns: taking that time inside graphs. Does not own: what it is for (`edl.policy.stragglers`).

Where executing eagerly, a clock around the call does it. Inside a graph TensorFlow's own clock is read, twice in a
step. On a GPU it is read when the gradients are queued, not when they are there: so some of what is computed counts as
waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

TELL_S = 0.1  # a call of Python takes 0.2 ms, so it comes once for so much waiting, on workers that have nothing to do


class Waiting:
    """Traced functions add it up in a variable; a graph of TensorFlow 1 can have none, and tells of each step."""

    def __init__(self) -> None:
        self._pending: Any = None  # seconds that nobody was told of yet

    def create(self) -> None:
        """The variable, beforehand: a function that was traced before without a reduction may not make one any more."""
        if self._pending is None:
            with tf.init_scope():
                self._pending = tf.Variable(0.0, trainable=False, dtype=tf.float64, name="edl_waiting")

    def since(self, began: Any, averaged: Sequence[Any], tell: Callable[[int], None]) -> list[Any]:
        """Take the time from `began` until all of `averaged` are there.

        A traced function does it by the way. Somebody must depend on what this returns in a graph of TensorFlow 1.
        """
        passed = when(averaged) - began
        if not tf.compat.v1.executing_eagerly_outside_functions():
            return [_told(passed, tell)]
        self.create()
        pending = tf.convert_to_tensor(self._pending.assign_add(passed))

        def told() -> Any:
            with tf.control_dependencies([_told(pending, tell)]):
                return self._pending.assign(0.0, read_value=False)

        tf.cond(pending >= TELL_S, lambda: tf.group(told()), tf.no_op)
        return []


def when(tensors: Sequence[Any]) -> Any:
    """The time at which all of these are there.

    A traced function reads its clock after all that may have effects and was traced before: so call it before what the
    tensors are used for.
    """
    with tf.control_dependencies([tf.group(*tensors)]):
        return tf.timestamp()


def _told(seconds: Any, tell: Callable[[int], None]) -> Any:
    return tf.numpy_function(lambda value: tell(max(0, round(1e9 * float(value)))), [seconds], [], stateful=True)
