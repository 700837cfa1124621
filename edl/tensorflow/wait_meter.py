"""The time that a graph waits for its peers: from this worker's last gradient until all have come back averaged.

Owns: taking that time inside graphs. Does not own: what it is for (`edl.policy.stragglers`).

Where executing eagerly, a clock around the call does it. Inside a graph edl's own operations count it
(`edl.tensorflow.kernels`), or, without these, TensorFlow's clock is read, twice in a step. On a GPU that is when the
gradients are queued, not when they are there: so some of what is computed counts as waiting.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from edl import ownership

TELL_S = 0.1  # how often it is told

_numbers = itertools.count()


class Waiting:
    """The waiting time of all graphs of this process.

    A traced function adds to a variable of ours, which a thread looks at now and then: in a step it costs less than
    a branch that now and then calls Python. A graph of TensorFlow 1 cannot, as a variable in it would be the script's
    to initialize. There it is added up in a table, which lives where the graph runs.
    """

    def __init__(self) -> None:
        self._total: Any = None  # seconds, as functions add it up
        self._reader: _Reader | None = None
        self._table = f"edl_waiting_{next(_numbers)}"

    def since(self, began: Any, averaged: Sequence[Any], tell: Callable[[int], None]) -> list[Any]:
        """Take the time from `began` until all of `averaged` are there.

        A traced function does it by the way. An operation must depend on what this returns in a graph of TensorFlow 1.
        """
        passed = when(averaged) - began
        with tf.device("/CPU:0"):
            if not tf.compat.v1.executing_eagerly_outside_functions():
                return self._add_to_table(passed, tell)
            self.create()
            self.is_counted(lambda: round(1e9 * float(self._total.numpy())), tell)
            return [self._total.assign_add(passed, read_value=False)]

    def is_counted(self, read_ns: Callable[[], int], tell: Callable[[int], None]) -> None:
        """Note that something adds the waiting up already, whatever graph it is: tell its sum from now on."""
        if self._reader is None:
            self._reader = _Reader(read_ns, tell)

    def create(self) -> None:
        """Make the variable beforehand: a function that was traced before without a reduction may not make one any
        more.
        """
        if self._total is None:
            with tf.init_scope(), tf.device("CPU:0"):
                self._total = tf.Variable(0.0, trainable=False, dtype=tf.float64, name="edl_waiting")

    def _add_to_table(self, passed: Any, tell: Callable[[int], None]) -> list[Any]:
        table = tf.raw_ops.MutableHashTableV2(key_dtype=tf.int64, value_dtype=tf.float64, shared_name=self._table)
        key = tf.zeros((), tf.int64)
        untold = passed + tf.raw_ops.LookupTableFindV2(
            table_handle=table, keys=key, default_value=tf.zeros((), tf.float64)
        )
        enough = untold >= TELL_S  # a call of Python takes 0.2 ms
        rest = tf.where(enough, tf.zeros_like(untold), untold)
        kept = tf.raw_ops.LookupTableInsertV2(table_handle=table, keys=key, values=rest)
        return [kept, tf.cond(enough, lambda: tf.group(_told(untold, tell)), tf.no_op)]


class _Reader:
    """Tell what was added up, until the process ends."""

    def __init__(self, read_ns: Callable[[], int], tell: Callable[[int], None]) -> None:
        self._read_ns = read_ns
        self._tell = tell
        self._told_ns = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="edl-waiting", daemon=True)
        self._thread.start()
        ownership.at_exit(self._stop)  # TensorFlow must not be asked while the interpreter goes down

    def _run(self) -> None:
        while not self._over.wait(TELL_S):
            total_ns = self._read_ns()
            if total_ns > self._told_ns:
                self._tell(total_ns - self._told_ns)
                self._told_ns = total_ns

    def _stop(self) -> None:
        self._over.set()
        self._thread.join()


def when(tensors: Sequence[Any]) -> Any:
    """Return the time at which all of these are there.

    A traced function reads its clock after all that may have effects and was traced before: so call it before what the
    tensors are used for.
    """
    with tf.control_dependencies([tf.group(*tensors)]):
        return tf.timestamp()


def _told(seconds: Any, tell: Callable[[int], None]) -> Any:
    return tf.numpy_function(lambda value: tell(max(0, round(1e9 * float(value)))), [seconds], [], stateful=True)
