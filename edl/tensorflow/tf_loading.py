"""The model of a checkpoint goes into one that is here, outside of any job.

Variables of TensorFlow 2 are matched in their order, as Keras numbers names by what else a script has built; those of a
graph by name, as a checkpoint has all of a graph's, and a script may want some of them.

Owns: whether the two fit, and the copying. Does not own: reading (`edl.checkpoints`), nor what a job that goes on takes
from a checkpoint.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import numpy as np
import tensorflow as tf

from edl.checkpoints.checkpoint_paths import look
from edl.checkpoints.checkpoint_reader import Checkpoint, chosen
from edl.checkpoints.manifest import StoredTensor
from edl.errors import UsageError

logger = logging.getLogger("edl")

Pair = tuple[Any, StoredTensor]  # a variable, and what is to be in it


def load(path: str | os.PathLike[str], model: Any) -> None:
    """Raises UsageError, CheckpointError; the model is as it was then, unless the place fails in the middle."""
    mine = _variables(model)
    found, passed_over = chosen(look(os.fspath(path)))
    for one in passed_over:
        logger.warning("%s; the one before it is loaded", one.reason)
    if found.manifest.framework != "tensorflow":
        raise UsageError(
            f"load_checkpoint(): {found.path} was written by {found.manifest.framework}, not by TensorFlow"
        )
    stored = [tensor for tensor in found.manifest.tensors if tensor.belongs == "model"]
    if not stored:
        raise UsageError(
            f"load_checkpoint(): {found.path} has no model: its script gave none to edl.Optimizer(..., model=model)"
        )
    pairs = _in_order(found, mine, stored) if tf.executing_eagerly() else _by_name(found, mine, stored)
    for variable, tensor in pairs:
        _check(found, variable, tensor)
    with closing(found):
        for variable, tensor in pairs:
            _assign(variable, _read(found, tensor))


def _variables(model: Any) -> list[Any]:
    """Return the variables of a model, a module or a variable, or of several; each once. Raises UsageError."""
    several = model if isinstance(model, list | tuple) else [model]
    known: dict[int, Any] = {}
    for one in several:
        for variable in [one] if _is_variable(one) else _variables_of(one):
            known.setdefault(id(variable), variable)
    return list(known.values())


def _variables_of(model: Any) -> Sequence[Any]:
    if not hasattr(model, "trainable_variables"):
        raise UsageError(
            "load_checkpoint(): model must be a Keras model, a tf.Module, a variable or a list of them, not a "
            f"{type(model).__name__}"
        )
    if not getattr(model, "built", True):
        raise UsageError(
            f"load_checkpoint(): this {type(model).__name__} has no variables yet: call its build(...) first"
        )
    return list(getattr(model, "weights", None) or model.variables)


def _is_variable(one: Any) -> bool:
    return hasattr(one, "assign") and hasattr(one, "shape")


def _in_order(found: Checkpoint, mine: Sequence[Any], stored: Sequence[StoredTensor]) -> list[Pair]:
    if len(mine) != len(stored):
        raise UsageError(
            f"load_checkpoint(): {found.path} is of another model: {len(mine)} variables here, {len(stored)} there; "
            "build the model that the job trained, or give a list of all its models in the order of wrapping"
        )
    return list(zip(mine, stored, strict=True))


def _by_name(found: Checkpoint, mine: Sequence[Any], stored: Sequence[StoredTensor]) -> list[Pair]:
    if tf.compat.v1.get_default_session() is None:
        raise UsageError("load_checkpoint(): in graph mode call it inside `with session.as_default():`")
    there = {tensor.name: tensor for tensor in stored}
    if unknown := [variable.name for variable in mine if variable.name not in there]:
        raise UsageError(
            f"load_checkpoint(): {found.path} is of another graph: it has no {unknown[0]}; build the one that the job "
            "trained"
        )
    return [(variable, there[variable.name]) for variable in mine]


def _check(found: Checkpoint, variable: Any, stored: StoredTensor) -> None:
    if tuple(variable.shape) != stored.shape:
        raise UsageError(
            f"load_checkpoint(): {_name(variable)} of the model is {list(variable.shape)}, and {stored.name} of "
            f"{found.path} is {list(stored.shape)}; build the model that the job trained"
        )
    try:
        size = np.dtype(tf.as_dtype(stored.dtype).as_numpy_dtype).itemsize
    except TypeError:
        size = -1
    if size * int(np.prod(stored.shape, dtype=np.int64)) != stored.bytes:
        raise UsageError(
            f"load_checkpoint(): TensorFlow here has no {stored.dtype}, which {stored.name} of {found.path} is"
        )


def _read(found: Checkpoint, stored: StoredTensor) -> np.ndarray[Any, Any]:
    value = np.empty(stored.shape, tf.as_dtype(stored.dtype).as_numpy_dtype)
    if value.nbytes:
        lying: Any = value.reshape(-1).view(np.uint8)
        found.read(stored.name, memoryview(lying))
    return value


def _assign(variable: Any, value: np.ndarray[Any, Any]) -> None:
    kept = value.astype(tf.as_dtype(variable.dtype).base_dtype.as_numpy_dtype)
    if tf.executing_eagerly():
        variable.assign(kept)
    else:
        variable.load(kept, tf.compat.v1.get_default_session())


def _name(variable: Any) -> str:
    return str(getattr(variable, "path", variable.name))
