"""Names that scripts written for `horovod.tensorflow.keras` and `horovod.keras` call by `hvd.`, on edl's own.

`import edl.tensorflow.keras as hvd`, or `import edl.keras as hvd`. Owns: these names, and what makes them Keras's. Does
not own: the callbacks (`edl.tensorflow.keras_callbacks`), nor the names that are those of `edl.tensorflow` too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

from edl.errors import UsageError
from edl.tensorflow import keras_callbacks, tf_elastic, tf_horovod_names
from edl.tensorflow.tf_process import framework, trainer

FACE = "edl.tensorflow.keras"


def allreduce(  # noqa: PLR0913, PLR0917 - Horovod's signature
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: Any = None,
    compression: Any = hvd.Compression.none,
) -> Any:
    """Reduce a number or an array of each worker to a numpy array."""
    return hvd.allreduce(
        tf.convert_to_tensor(value),
        name=name,
        average=average,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        op=op,
        compression=compression,
    ).numpy()


def allgather(value: Any, name: str | None = None) -> Any:
    """Return all workers' rows, by rank, as a numpy array."""
    return hvd.allgather(tf.convert_to_tensor(value), name=name).numpy()


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """Return what `root_rank` has, as a numpy array."""
    return hvd.broadcast(tf.convert_to_tensor(value), root_rank, name=name).numpy()


def reducescatter(value: Any, name: str | None = None, op: Any = hvd.Average) -> Any:
    """Return this worker's rows of the reduction, as a numpy array."""
    return hvd.reducescatter(tf.convert_to_tensor(value), name=name, op=op).numpy()


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: Any = hvd.Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """A model that was saved, whose optimizer averages gradients: as `DistributedOptimizer`, with the model's weights
    along.
    """
    if compression is not hvd.Compression.none:
        raise UsageError("load_model(compression=...): gradients travel as they are: leave it away")
    if legacy_opts:
        raise UsageError("load_model(legacy_opts=True): Keras 3 has no such optimizers: leave it away")
    known = {one.__name__: one for one in custom_optimizers or ()} | (custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=known)
    if getattr(model, "optimizer", None) is not None:
        framework.wrap(trainer, model.optimizer, model)
    return model


OURS = {one.__name__: one for one in (allgather, allreduce, broadcast, load_model, reducescatter)}
ELASTIC = ("CommitStateCallback", "UpdateBatchStateCallback", "UpdateEpochStateCallback")


def lookup(name: str) -> Any:
    """Find what Horovod's `name` is here. Raises AttributeError, and UsageError where there is a remedy."""
    if name in OURS:
        return OURS[name]
    face: Any = sys.modules["edl.tensorflow"]
    return getattr(face, name) if name in face.__all__ else tf_horovod_names.lookup(FACE, name)


def lookup_elastic(name: str) -> Any:
    """Return what `name` of the module `elastic` is here."""
    return getattr(keras_callbacks if name in ELASTIC else tf_elastic, name)
