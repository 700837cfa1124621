"""How long graphs of TensorFlow wait for their peers."""

from __future__ import annotations

import time

import pytest
import tensorflow as tf
from pace import patient

from edl.tensorflow.wait_meter import TELL_S, Waiting, when


class Steps:
    """Mini-batches inside a graph, and what they really took: on a busy machine a sleep is longer than asked for."""

    def __init__(self, compute_s: float, wait_s: float) -> None:
        self.waiting = Waiting()
        self.told: list[int] = []
        self.computed_s, self.waited_s = 0.0, 0.0
        self._compute_s, self._wait_s = compute_s, wait_s

    def trace(self):
        own = [self._slept(tf.constant(1.0), computes=True), tf.constant(2.0)]
        ready = when(own)
        averaged = [own[0], self._slept(own[1] + own[0], computes=False)]
        with tf.control_dependencies(self.waiting.since(ready, averaged, self.told.append)):
            return tf.identity(averaged[1])

    def _slept(self, value, *, computes: bool):
        """`value`, so much later."""

        def sleep(tensor):
            began = time.perf_counter()
            time.sleep(self._compute_s if computes else self._wait_s)
            took_s = time.perf_counter() - began
            self.computed_s += took_s if computes else 0.0
            self.waited_s += 0.0 if computes else took_s
            return tensor

        return tf.numpy_function(sleep, [value], tf.float32, stateful=True)

    def make_eight(self, one) -> None:
        """What is told of them comes at intervals, and has all that they waited and none of what they computed."""
        self.told.clear()
        self.computed_s, self.waited_s = 0.0, 0.0
        began = time.perf_counter()
        for _ in range(8):
            one()
        took_s = time.perf_counter() - began
        until = time.monotonic() + patient(5)
        while sum(self.told) / 1e9 < self.waited_s - TELL_S and time.monotonic() < until:
            time.sleep(TELL_S / 10)  # it is told at intervals
        told_s = sum(self.told) / 1e9
        assert self.waited_s - TELL_S <= told_s <= took_s - self.computed_s + TELL_S  # what was left of before counts


def test_a_traced_function_tells_what_it_has_waited():
    steps = Steps(compute_s=0.1, wait_s=0.03)
    steps.make_eight(tf.function(steps.trace))


def test_it_is_not_told_in_each_step():
    steps = Steps(compute_s=0.0, wait_s=TELL_S / 50)
    one, began = tf.function(steps.trace), time.perf_counter()
    for _ in range(100):
        one()
    assert 0 < len(steps.told) <= (time.perf_counter() - began) / TELL_S + 1


@pytest.mark.slow
def test_so_does_a_graph_of_tensorflow_1_in_each_of_its_sessions():
    steps = Steps(compute_s=0.1, wait_s=0.03)
    with tf.Graph().as_default() as graph:
        train = steps.trace()
        assert not tf.compat.v1.global_variables(), "the script would have to initialize it"
        graph.finalize()
        for _ in range(2):
            with tf.compat.v1.Session() as session:
                steps.make_eight(lambda session=session: session.run(train))


def test_a_function_may_have_been_traced_before():
    steps, reduces = Steps(compute_s=0.0, wait_s=2 * TELL_S), [False]
    steps.waiting.create()

    @tf.function
    def train(_: int):
        return steps.trace() if reduces[0] else tf.constant(0.0)

    train(0)
    reduces[0] = True
    train(1)
    until = time.monotonic() + patient(5)
    while not steps.told and time.monotonic() < until:
        time.sleep(TELL_S / 10)
    assert sum(steps.told) / 1e9 >= steps.waited_s - TELL_S
