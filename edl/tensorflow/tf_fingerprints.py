"""Fingerprints of what must be equal on all workers, of TensorFlow's variables and plain values.

Owns: reading variables for that. Does not own: which they are (`edl.tensorflow.tf_framework`), nor comparing them
(`edl.trainer.divergence_check`).

In the main memory a variable is read where it lies; one on a device is fetched, one at a time. Those of a session are
read in one run.
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
