"""Keras optimizers of a model, by whatever name it has them, and those that make updates without being wrapped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import pytest

from edl.tensorflow.tf_unwrapped import KerasUnwrapped, optimizers_of, word_for


class Gan(keras.Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.critic = keras.Sequential([keras.layers.Dense(1)])
        self.critic.compile(keras.optimizers.Adagrad())

    def compile(self, *optimizers: Any) -> None:
        super().compile("rmsprop")
        self.first, *rest = optimizers
        self.more = [rest[0], {"scaled": rest[1]}]
        self.again = self.first


def test_all_optimizers_of_a_model_are_found_once_and_in_order() -> None:
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    model = Gan()
    model.compile(keras.optimizers.Adam(), keras.optimizers.Nadam(), scaled)
    found = [type(one).__name__ for one in optimizers_of(model)]
    assert found[0] == "Adagrad" or found[-1] == "Adagrad"
    assert sorted(found) == ["Adagrad", "Adam", "LossScaleOptimizer", "Nadam", "RMSprop"]
    assert found == [type(one).__name__ for one in optimizers_of(model)]


@pytest.fixture
def unwrapped() -> Iterator[KerasUnwrapped]:
    base = next(kind for kind in keras.optimizers.Optimizer.__mro__ if "apply" in vars(kind))
    apply = base.apply
    watching = KerasUnwrapped()
    watching.watch()
    yield watching
    base.apply = apply


def updated(times: int, optimizer: Any = None) -> tuple[Any, Any]:
    variable = keras.Variable([1.0, 2.0], name="kernel")
    optimizer = optimizer or keras.optimizers.SGD()
    for _ in range(times):
        optimizer.apply([keras.ops.ones(2)], [variable])
    return optimizer, variable


def test_what_one_trains_that_has_made_several_updates(unwrapped: KerasUnwrapped) -> None:
    _once, _ = updated(1)
    assert unwrapped.any_seen and list(unwrapped.trained([])) == []
    optimizer, kernel = updated(2)
    ((variable, word),) = unwrapped.trained([])
    assert variable is kernel and "SGD, which edl.Optimizer was not given" in word_for(variable, word)
    unwrapped.leave_alone(optimizer)
    assert unwrapped.is_local(optimizer) and list(unwrapped.trained([])) == []


def test_what_is_inside_of_a_wrapped_one_is_averaged(unwrapped: KerasUnwrapped) -> None:
    inner = keras.optimizers.SGD()
    scaled, _ = updated(2, keras.optimizers.LossScaleOptimizer(inner))
    assert list(unwrapped.trained([scaled])) == []
    assert len(list(unwrapped.trained([]))) == 1
