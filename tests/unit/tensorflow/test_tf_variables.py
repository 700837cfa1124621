"""Which models have all of their variables."""

from __future__ import annotations

from typing import Any

import keras

from edl.tensorflow.tf_tensors import has_all


class Both(keras.Model):  # type: ignore[misc] # a package without types
    """The script calls its parts, and never itself."""

    def __init__(self, *parts: Any) -> None:
        super().__init__()
        self.parts = parts


def built() -> keras.Sequential:
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.LeakyReLU()])


def test_a_model_of_built_models_has_all_its_variables() -> None:
    model = Both(built(), built())
    assert not model.built
    assert has_all(model)


def test_a_model_of_which_one_part_is_not_built_has_not() -> None:
    assert not has_all(Both(built(), keras.Sequential([keras.layers.Dense(2)])))
    assert not has_all(Both())


def test_what_is_no_model_of_keras_has_what_it_has() -> None:
    assert has_all(object())
