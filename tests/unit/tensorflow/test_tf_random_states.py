"""States of random numbers of TensorFlow: the same numbers come again, by whatever generator the next life has."""

from __future__ import annotations

from collections.abc import Iterator

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ops import stateful_random_ops

from edl.tensorflow.tf_random_states import give_back, taken


def drawn() -> list[float]:
    return tf.random.get_global_generator().normal([3]).numpy().tolist()


@pytest.fixture(autouse=True)
def no_generator() -> Iterator[None]:
    """As in a process that has not asked for one."""
    before, stateful_random_ops.global_generator = stateful_random_ops.global_generator, None
    yield
    stateful_random_ops.global_generator = before


@pytest.mark.parametrize("next_life", ["none", "same", "other"])
def test_the_global_generator_goes_on(next_life: str) -> None:
    tf.random.set_global_generator(tf.random.Generator.from_seed(7))
    drawn()
    states, expected = taken([]), drawn()
    if next_life == "none":
        stateful_random_ops.global_generator = None
    elif next_life == "other":
        tf.random.set_global_generator(tf.random.Generator.from_seed(8, alg="threefry"))
    give_back([], states)
    assert drawn() == expected


def test_a_function_that_is_traced_goes_on_with_it() -> None:
    generator = tf.random.Generator.from_seed(7)
    tf.random.set_global_generator(generator)
    traced = tf.function(lambda: tf.random.get_global_generator().normal([3]))
    traced()
    states, expected = taken([]), traced().numpy().tolist()
    traced()
    give_back([], states)
    assert traced().numpy().tolist() == expected
    assert tf.random.get_global_generator() is generator


def test_none_is_made_where_the_script_asks_for_none() -> None:
    assert taken([]) == {}
    give_back([], {})
    assert stateful_random_ops.global_generator is None


def test_seeds_of_layers_go_on_beside_it() -> None:
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dropout(0.5, seed=3)])
    draw = lambda: np.asarray(model(tf.ones((1, 64)), training=True)).tolist()  # noqa: E731
    tf.random.set_global_generator(tf.random.Generator.from_seed(7))
    states, expected = taken([model]), (draw(), drawn())
    draw()
    give_back([model], states)
    assert (draw(), drawn()) == expected


def test_what_is_no_state_is_refused() -> None:
    tf.random.set_global_generator(tf.random.Generator.from_seed(7))
    [name] = taken([])
    with pytest.raises(ValueError, match="reshape"):
        give_back([], {name: bytes(8)})
