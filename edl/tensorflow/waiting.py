"""How long a graph waits for its peers: from this worker's last gradient until all have come back averaged.

Owns: taking that time inside graphs. Does not own: what it is for (`edl.policy.stragglers`).

Where executing eagerly, a clock around the call does it. Inside a graph TensorFlow's own clock is read, twice in a
step. On a GPU it is read when the gradients are queued, not when they are there: so some of what is computed counts as
waiting.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

TELL_S = 0.1  # a call of Python takes 0.2 ms, so it comes once for so much waiting, on workers that have nothing to do

_numbers = itertools.count()


class Waiting:
    """Graphs add it up in a table, which lives where they run.

    Not in a variable: a function that was traced before may not make one, and in a graph of TensorFlow 1 the script
    would have to initialize it.
    """

    def __init__(self) -> None:
        self._name = f"edl_waiting_{next(_numbers)}"

    def since(self, began: Any, averaged: Sequence[Any], tell: Callable[[int], None]) -> list[Any]:
        """Take the time from `began` until all of `averaged` are there.

        A traced function does it by the way. An operation must depend on what this returns in a graph of TensorFlow 1.
        """
        passed = when(averaged) - began
        with tf.device("/CPU:0"):
            table = tf.raw_ops.MutableHashTableV2(key_dtype=tf.int64, value_dtype=tf.float64, shared_name=self._name)
            key = tf.zeros((), tf.int64)
            untold = passed + tf.raw_ops.LookupTableFindV2(
                table_handle=table, keys=key, default_value=tf.zeros((), tf.float64)
            )
            enough = untold >= TELL_S
            rest = tf.where(enough, tf.zeros_like(untold), untold)
            kept = tf.raw_ops.LookupTableInsertV2(table_handle=table, keys=key, values=rest)
            return [kept, tf.cond(enough, lambda: tf.group(_told(untold, tell)), tf.no_op)]


def when(tensors: Sequence[Any]) -> Any:
    """The time at which all of these are there.

    A traced function reads its clock after all that may have effects and was traced before: so call it before what the
    tensors are used for.
    """
    with tf.control_dependencies([tf.group(*tensors)]):
        return tf.timestamp()


def _told(seconds: Any, tell: Callable[[int], None]) -> Any:
    return tf.numpy_function(lambda value: tell(max(0, round(1e9 * float(value)))), [seconds], [], stateful=True)
