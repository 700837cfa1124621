"""TensorFlow's variables and tensors, and what Keras makes of them, among the values that travel
(`edl.trainer.value_tree`).

Owns: their form, which are filled in place, which variable is behind one of Keras, and by what name. Does not own:
moving them (`edl.tensorflow.tf_state`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from edl.trainer.arrays import as_bytes
from edl.trainer.value_tree import CannotTravel, Destination, Differs, Form, TensorPart


def behind(variable: Any) -> Any:
    """Return TensorFlow's variable behind a variable of Keras, or `variable` itself."""
    return variable.value if hasattr(variable, "path") else variable


def named(variable: Any) -> tuple[str, Any]:
    """Return the variable behind this one, with the name that is the same on all workers."""
    return getattr(variable, "path", variable.name), behind(variable)


def has_all(model: Any) -> bool:
    """Tell whether all variables of this model are there. A model of models is never built itself, where the script
    calls only its parts: as a GAN does.
    """
    if getattr(model, "built", True):
        return True
    layers = model._flatten_layers(include_self=False) if isinstance(model, keras.Model) else ()
    return bool(model.variables) and all(layer.built for layer in layers)


VARIABLE, TENSOR = "tf.Variable", "tf.Tensor"
KERAS = (keras.Layer, keras.optimizers.Optimizer, keras.metrics.Metric)


class TensorFlowTensors:
    """`edl.trainer.value_tree.Tensors`. Contents are variables; those of a tensor, which cannot be changed, are
    bytes.
    """

    def is_of(self, form: Form) -> bool:
        return form.sort in {VARIABLE, TENSOR}

    def form(self, value: object) -> Form | None:
        if not isinstance(value, (tf.Variable, keras.Variable, tf.Tensor)):
            return None
        if not tf.executing_eagerly():
            raise CannotTravel("what is in a graph reaches newcomers with its session; leave it away")
        kind, shape = tf.as_dtype(value.dtype).base_dtype, tf.TensorShape(value.shape)
        if not shape.is_fully_defined() or kind in {tf.string, tf.resource, tf.variant}:
            raise CannotTravel(
                f"a {kind.name}{shape} of TensorFlow cannot travel to a newcomer; register numpy's arrays"
            )
        sort = TENSOR if isinstance(value, tf.Tensor) else VARIABLE
        return Form(sort, kind.name, tuple(shape.as_list()))

    def contents(self, value: Any) -> Any:
        if isinstance(value, tf.Tensor):
            return as_bytes(np.ascontiguousarray(value.numpy()))
        return value.value if isinstance(value, keras.Variable) else value

    def place(self, form: Form, mine: object) -> Destination:
        if form.sort == TENSOR:
            array = np.empty(form.shape, tf.as_dtype(form.dtype).as_numpy_dtype)
            return Destination(as_bytes(array), lambda: tf.constant(array))
        if not isinstance(mine, (tf.Variable, keras.Variable)) or self.form(mine) != form:
            here = "nothing" if mine is None else self.form(mine) or f"a {type(mine).__qualname__}"
            raise Differs(f"{here} here, {form} there")
        return Destination(self.contents(mine), lambda: mine)

    def parts(self, value: object) -> Sequence[TensorPart] | None:
        if not isinstance(value, (*KERAS, tf.Module)) or isinstance(value, (tf.Variable, keras.Variable)):
            return None
        if not getattr(value, "built", True):
            raise CannotTravel(
                f"a {type(value).__qualname__} that is not built yet has no variables; call its build() first"
            )
        statistics = {id(variable) for variable in statistics_of(value)}
        is_own = isinstance(value, keras.metrics.Metric)
        return [TensorPart(_name(one), one, id(one) in statistics, is_own) for one in _variables(value)]


def statistics_of(value: object) -> Iterable[Any]:
    """Return the variables that forward passes update: those that were made so, not those that are frozen."""
    layers = value._flatten_layers() if isinstance(value, keras.Layer) else ()
    return (variable for layer in layers for variable in layer._non_trainable_variables)


def batch_norm_of(value: object) -> Iterable[Any]:
    """Return the variables that batch norm keeps; other statistics a script may change on all workers alike."""
    layers = value._flatten_layers() if isinstance(value, keras.Layer) else ()
    norms = (layer for layer in layers if isinstance(layer, keras.layers.BatchNormalization))
    return (variable for layer in norms for variable in layer._non_trainable_variables)


def metrics_of(value: object) -> Iterable[Any]:
    """Return what the metrics of a model have added up in this epoch."""
    return value.metrics_variables if isinstance(value, keras.Model) else ()


def _variables(value: Any) -> Sequence[Any]:
    """Return the variables without the state of random numbers and of metrics, which is each worker's own."""
    return list(value.weights if isinstance(value, keras.Layer) else value.variables)


def _name(variable: Any) -> str:
    return str(getattr(variable, "path", variable.name))
