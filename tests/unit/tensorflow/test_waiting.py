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


def expect_told_at_intervals(told: list[int]) -> None:
    """Of eight steps that waited for 0.03 s each, and for none of what was computed in between."""
    assert 1 <= len(told) <= 2
    assert TELL_S * 1e9 * len(told) <= sum(told)
    assert sum(told) / 1e9 == pytest.approx(0.24, abs=TELL_S + 0.02)


def test_a_traced_function_tells_what_it_has_waited():
    waiting, told = Waiting(), []
    train = tf.function(lambda: step(waiting, told, compute_s=0.1, wait_s=0.03))
    for _ in range(8):
        train()
    expect_told_at_intervals(told)


def test_so_does_a_graph_of_tensorflow_1_in_each_of_its_sessions():
    waiting, told = Waiting(), []
    with tf.Graph().as_default() as graph:
        train = step(waiting, told, compute_s=0.1, wait_s=0.03)
        assert not tf.compat.v1.global_variables(), "the script would have to initialize it"
        graph.finalize()
        for _ in range(2):
            with tf.compat.v1.Session() as session:
                for _ in range(8):
                    session.run(train)
            expect_told_at_intervals(told)
            told.clear()


def test_a_function_may_have_been_traced_before():
    waiting, told, reduces = Waiting(), [], [False]

    @tf.function
    def train(_: int):
        return step(waiting, told, compute_s=0.0, wait_s=2 * TELL_S) if reduces[0] else tf.constant(0.0)

    train(0)
    reduces[0] = True
    train(1)
    assert len(told) == 1
