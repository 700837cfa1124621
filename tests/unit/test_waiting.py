"""How long graphs of TensorFlow wait for their peers."""

from __future__ import annotations

import time

import pytest
import tensorflow as tf

from edl.tensorflow.waiting import TELL_S, Waiting, when


def slept(value, seconds: float):
    """`value`, so much later."""

    def sleep(tensor):
        time.sleep(seconds)
        return tensor

    return tf.numpy_function(sleep, [value], tf.float32, stateful=True)


def step(waiting: Waiting, told: list[int], compute_s: float, wait_s: float):
    """One mini-batch inside a graph: what it computes, and what its peers take."""
    own = [slept(tf.constant(1.0), compute_s), tf.constant(2.0)]
    ready = when(own)
    averaged = [own[0], slept(own[1] + own[0], wait_s)]
    with tf.control_dependencies(waiting.since(ready, averaged, told.append)):
        return tf.identity(averaged[1])


def test_a_traced_function_tells_what_it_has_waited():
    waiting, told = Waiting(), []
    train = tf.function(lambda: step(waiting, told, compute_s=0.1, wait_s=0.03))
    for _ in range(8):
        train()
    assert 1 <= len(told) <= 2  # of 0.24 s, not each time
    assert TELL_S * 1e9 * len(told) <= sum(told)
    assert sum(told) / 1e9 == pytest.approx(0.24, abs=TELL_S + 0.02)  # and none of what it has computed


def test_a_function_that_was_traced_before_needs_the_variable_beforehand():
    waiting, told, reduces = Waiting(), [], [False]
    waiting.create()

    @tf.function
    def train(_: int):
        return step(waiting, told, compute_s=0.0, wait_s=2 * TELL_S) if reduces[0] else tf.constant(0.0)

    train(0)
    reduces[0] = True
    train(1)
    assert len(told) == 1


def test_a_graph_of_tensorflow_1_tells_of_each_step():
    waiting, told = Waiting(), []
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        train = step(waiting, told, compute_s=0.05, wait_s=0.02)
        for _ in range(3):
            session.run(train)
    assert len(told) == 3
    assert all(0.02e9 <= one < 0.05e9 for one in told[1:])
