"""edl's own operations for gradients: what they compute, and that they let TensorFlow work in its own order."""

from __future__ import annotations

import time

import numpy as np
import pytest
import tensorflow as tf
from pace import patient

from edl.tensorflow.kernels import AVERAGED, SUMMED, TYPES, kernels_for
from edl.tensorflow.wait_meter import TELL_S, Waiting

OWN = kernels_for([])
assert OWN is not None, "scripts/setup builds them"

one_of_each = pytest.mark.parametrize("kind", sorted(TYPES, key=str), ids=str)


@one_of_each
@pytest.mark.parametrize(("part", "scale"), [(AVERAGED, [0.5, 9.0]), (SUMMED, [9.0, 0.5])])
def test_each_value_is_multiplied_by_its_part_of_the_scale(kind, part, scale):
    value = tf.constant([[1.0, -2.0, 3.0]], kind)
    [found] = OWN.weighed([value], [part], tf.constant(scale), "a")
    assert found.dtype == kind
    assert found.shape == value.shape
    np.testing.assert_array_equal(found.numpy(), (value * tf.constant(0.5, kind)).numpy())


@one_of_each
def test_what_weighs_nothing_is_zero_whatever_it_was(kind):
    value = tf.constant([np.nan, np.inf, 1.0], kind)
    [found] = OWN.weighed([value], [AVERAGED], tf.constant([0.0, 0.0]), "a")
    np.testing.assert_array_equal(found.numpy().astype(np.float32), np.zeros(3, np.float32))
    assert np.isnan(value.numpy().astype(np.float32)[0]), "what the script holds is left alone"


def test_a_weight_of_one_leaves_the_bits():
    value = tf.constant([np.float32(1e-40), -0.0, np.nan])
    [found] = OWN.weighed([value], [AVERAGED], tf.constant([1.0, 0.25]), "a")
    assert found.numpy().tobytes() == value.numpy().tobytes()


def test_a_traced_function_reads_the_scale_anew_also_for_a_gradient_that_is_constant():
    scale = tf.Variable([1.0, 1.0])

    @tf.function
    def step():
        return OWN.weighed([tf.ones(3)], [AVERAGED], scale.read_value(), "a")[0]

    assert step().numpy().tolist() == [1.0] * 3
    scale.assign([0.25, 1.0])
    assert step().numpy().tolist() == [0.25] * 3


def test_a_gradient_is_weighed_when_it_is_there_and_not_in_the_order_of_the_layers():
    seen: list[str] = []

    def noted(name: str):
        def note(value):
            seen.append(name)
            return value

        return lambda value: tf.numpy_function(note, [value], tf.float32, stateful=False)

    def late(value):
        until = time.monotonic() + 1  # where all threads of TensorFlow are taken, the second comes after this one
        while "second" not in seen and time.monotonic() < until:
            time.sleep(0.01)
        return value

    @tf.function
    def step():
        first = tf.ensure_shape(tf.numpy_function(late, [tf.ones(2)], tf.float32, stateful=False), [2])
        weighed = OWN.weighed([first, tf.ones(2)], [AVERAGED, AVERAGED], tf.ones(2), "b")
        return [noted(name)(value) for name, value in zip(("first", "second"), weighed, strict=True)]

    step()
    assert seen == ["second", "first"]


def test_none_is_let_through_before_all_are_there():
    done: list[str] = []

    def work(name: str, until_s: float):
        def run(value):
            time.sleep(until_s)
            done.append(name)
            return value

        return lambda value: tf.numpy_function(run, [value], tf.float32, stateful=False)

    @tf.function
    def step():
        slow, quick = work("slow", 0.05)(tf.ones(1)), tf.ones(1) * 2
        _, quick = OWN.together([slow, quick], "c")
        return work("after", 0.0)(quick)

    assert step().numpy().tolist() == [2.0]
    assert done == ["slow", "after"]


def test_what_is_gone_through_has_a_gradient_of_its_own():
    value = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(OWN.together(OWN.weighed([value], [SUMMED], tf.constant([1.0, 0.5]), "d"), "d")[0])
    assert tape.gradient(loss, value).numpy().tolist() == [0.5, 0.5]


def test_other_kinds_of_values_are_left_to_tensorflow():
    assert kernels_for([tf.ones(1), tf.constant([1 + 1j])]) is None


def test_what_a_step_waits_for_its_peers_is_told():
    waiting, told = Waiting(), []
    waits_s: list[float] = []

    def peers(value):
        began = time.perf_counter()
        time.sleep(0.03)
        waits_s.append(time.perf_counter() - began)
        return value

    @tf.function
    def step():
        computed = tf.numpy_function(lambda: time.sleep(0.1) or np.float32(1), [], tf.float32, stateful=True)
        [own] = OWN.weighed([tf.ensure_shape(computed, [])], [AVERAGED], tf.ones(2), "e")
        return OWN.together([tf.numpy_function(peers, [own], tf.float32, stateful=False)], "e")

    before, began = OWN.waited_ns(), time.perf_counter()
    waiting.is_counted(lambda: OWN.waited_ns() - before, told.append)
    for _ in range(4):
        step()
    took_s = time.perf_counter() - began
    until = time.monotonic() + patient(5)
    while sum(told) / 1e9 < sum(waits_s) and time.monotonic() < until:
        time.sleep(TELL_S / 10)  # it is told at intervals
    assert sum(waits_s) <= sum(told) / 1e9 <= took_s - 4 * 0.1
