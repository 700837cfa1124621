"""TensorFlow's variables and tensors, and what Keras makes of them, among the values that travel
(`edl.trainer.value_tree`).

Owns: their form, which are filled in place, which variable is behind one of Keras, and by what name. Does not own:
moving them (`edl.tensorflow.tf_state`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from edl import background
from edl.core.worker.digest import fingerprint_of_array, fingerprint_of_value
from edl.protocol.divergence_report import Fingerprint
from edl.trainer.framework_port import LONG_BYTES
from edl.trainer.value_tree import CannotTravel, Destination, Differs, Form, TensorPart, as_bytes


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


# Fingerprints tell whether workers are equal. In the main memory a variable is read where it lies; one on a device is
# fetched, one at a time. Those of a session are read in one run.


def fingerprints(leaves: Iterable[tuple[str, Any]]) -> list[Fingerprint]:
    """Take fingerprints of named variables and plain values, in their order. Anything else among them cannot be
    compared, and is left out.
    """
    found = (_fingerprint(name, leaf) for name, leaf in leaves)
    return [one for one in found if one is not None]


def fingerprints_begun(leaves: Iterable[tuple[str, Any]]) -> Callable[[], list[Fingerprint]] | None:
    """Variables in the main memory are read at once, and looked at on a thread. What was read stays as it is: an update
    that comes before it was looked at makes a copy. None: these are not large.
    """
    here: list[tuple[str, tf.Variable]] = []
    rest: list[tuple[str, Any]] = []
    for name, leaf in leaves:
        variable = leaf.value if isinstance(leaf, keras.Variable) else leaf
        if isinstance(variable, tf.Variable) and "CPU" in variable.device:
            here.append((name, variable))
        else:
            rest.append((name, leaf))
    if sum((variable.shape.num_elements() or 0) * variable.dtype.size for _, variable in here) < LONG_BYTES:
        return None
    first = fingerprints(rest)
    read = deque((name, _read(variable)) for name, variable in here)

    def look() -> list[Fingerprint]:
        found: list[Fingerprint] = []
        while read:
            found += fingerprints([read.popleft()])
        return found

    looked = background.begin(look)
    return lambda: [*first, *looked.result()]


def fingerprints_of_session(variables: Sequence[Any], more: Iterable[tuple[str, Any]]) -> list[Fingerprint]:
    """Take fingerprints of variables that live in the default session."""
    values = tf.compat.v1.get_default_session().run(list(variables)) if variables else []
    named = ((variable.name, np.asarray(value)) for variable, value in zip(variables, values, strict=True))
    return fingerprints([*named, *more])


def _fingerprint(name: str, leaf: Any) -> Fingerprint | None:
    if isinstance(leaf, np.ndarray):
        return fingerprint_of_array(name, leaf)
    if isinstance(leaf, keras.Variable):
        leaf = leaf.value
    if isinstance(leaf, tf.Variable):
        leaf = _read(leaf)
    if isinstance(leaf, tf.Tensor):
        return None if leaf.dtype == tf.string else fingerprint_of_array(name, _in_memory(leaf))
    return fingerprint_of_value(name, leaf)


def _read(variable: tf.Variable) -> tf.Tensor:
    """Read a variable as `read_value` does, in a third of its time."""
    return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)


def _in_memory(tensor: Any) -> np.ndarray[Any, Any]:
    """Return the tensor's contents, without a copy where they lie in the main memory."""
    return np.asarray(tensor._numpy())
