"""Norms of gradients before they are averaged and after, in the steps in which the gradient noise is measured.

Owns: taking the norms and giving them to all, in graphs too. Does not own: which steps those are
(`edl.trainer.rates.factors`), nor what follows from the norms (`edl.policy.learning`).

A traced function reads from a variable of ours whether its step is measured; then all workers read the same, as there
is one all-reduce more in such a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf
from tensorflow.python.eager import context

from edl.errors import UsageError
from edl.policy.learning import of_step

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
        """`edl.policy.learning.of_step` of the newest step; None where not all of so many parts were averaged in
        it.
        """
        own, inverse, having, whole, count = self._heard.numpy().tolist()
        if count < parts or not having:
            return None
        return of_step(own * count / having, inverse / having, whole)


def _squares(gradients: Sequence[Any]) -> Any:
    """The squared norm of all of them together."""
    norms = [tf.reduce_sum(tf.square(_single(_summed(one)))) for one in gradients]
    with tf.device("/CPU:0"):
        return tf.add_n([tf.cast(norm, tf.float64) for norm in norms])


def _single(values: Any) -> Any:
    return tf.cast(values, tf.float32) if values.dtype.size < tf.float32.size else values


def _summed(gradient: Any) -> Any:
    """A sparse one has a row for each time that it was looked at, and after averaging those of all workers."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    rows, of_row = tf.unique(gradient.indices)
    return tf.math.unsorted_segment_sum(gradient.values, of_row, tf.size(rows))
