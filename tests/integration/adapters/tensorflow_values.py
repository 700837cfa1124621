"""What a script of TensorFlow may register, with other contents on each worker."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf


class Registered:
    """Values, and the script's own references to them."""

    def __init__(self, seed: int) -> None:
        keras.utils.set_random_seed(seed)
        self.ema = keras.Sequential(
            [keras.Input((3,)), keras.layers.Dense(2), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)]
        )
        self.layer = keras.layers.Dense(2)
        self.layer.build((None, 2))
        self.optimizer = keras.optimizers.Adam()
        self.optimizer.build(self.layer.trainable_variables)
        self.optimizer.iterations.assign(seed)
        self.module = tf.Module()
        self.module.half = tf.Variable(tf.fill([2_500_000], tf.cast(seed, tf.bfloat16)))  # large: it travels alone
        self.flag = tf.Variable(seed % 2 == 0)
        self.metric = keras.metrics.Mean()
        self.metric.update_state([float(seed)])
        self.table = np.full((2, 3), seed, np.float32)[:, ::2]
        self.history: dict[str, Any] = {"tensor": tf.fill([seed], 1.5), "plain": [(seed, "text")]}

    def values(self) -> dict[str, Any]:
        nested = {"layer": self.layer, "of": (self.module, self.flag), "table": [self.table]}
        return {"ema": self.ema, "nested": nested, "x": [self.optimizer, self.metric], "history": self.history}

    def shown(self) -> str:
        """All contents as text."""
        of = [*self.ema.weights, *self.layer.weights, *self.optimizer.variables, self.flag, *self.metric.variables]
        arrays = [np.asarray(variable) for variable in of]
        arrays += [self.module.half.numpy().astype(np.float32).sum(), self.table, self.history["tensor"].numpy()]
        return str(
            [array.tolist() for array in arrays] + [self.history["plain"], type(self.history["tensor"]).__name__]
        )
