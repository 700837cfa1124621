"""For pytest: `fit` of a Keras model as docs/keras.md has it, in tests that call it plainly.

Arrays become `edl.elastic_dataset(...)`, other data stay as they are, and `edl.KerasCallback()` is the last callback.
"""

from __future__ import annotations

import functools
from typing import Any

import keras
import numpy as np

import edl.tensorflow as edl
from edl.tensorflow.tf_process import trainer as seat

theirs = keras.Model.fit


@functools.wraps(theirs)
def fit(model: Any, x: Any = None, y: Any = None, batch_size: Any = None, **settings: Any) -> Any:
    """One pass over arrays is an epoch, as in theirs."""
    if not seat.began:
        edl.init()
    plain = isinstance(x, np.ndarray) and not {"validation_split", "class_weight", "steps_per_epoch"} & {
        name for name, value in settings.items() if value
    }
    if plain:
        weights = settings.pop("sample_weight", None)
        arrays = tuple(one for one in (x, y, weights) if one is not None)
        shuffle = bool(settings.pop("shuffle", True))
        settings["validation_batch_size"] = settings.get("validation_batch_size") or batch_size
        x, y, batch_size = edl.elastic_dataset(arrays, batch_size or 32, shuffle=shuffle), None, None
    callbacks = settings.pop("callbacks", None)
    if callbacks is None or isinstance(callbacks, (list, tuple)):
        ours, given = edl.KerasCallback(), list(callbacks or ())
        writes = any(isinstance(one, keras.callbacks.CSVLogger) for one in given)  # which asks for it to be before
        callbacks = [ours, *given] if writes else [*given, ours]
    elif isinstance(callbacks, keras.callbacks.Callback):
        callbacks = [callbacks, edl.KerasCallback()]
    return theirs(model, x, y, batch_size, callbacks=callbacks, **settings)


keras.Model.fit = fit
