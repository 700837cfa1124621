"""A Keras model that trains its layers by two optimizers of its own names, as a GAN does; `fit` knows of neither."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import edl.tensorflow as edl

keras.utils.set_random_seed(0)
x = np.random.default_rng(0).normal(size=(192, 4)).astype("float32")


class Pair(keras.Model):  # type: ignore[misc] # a package without types
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = keras.layers.Dense(8), keras.layers.Dense(1)

    def build(self, _shape: Any) -> None:
        self.first.build((None, 4))
        self.second.build((None, 8))
        self.built = True

    def compile(self, first_optimizer: Any, second_optimizer: Any) -> None:
        super().compile()
        self.optimizers = {"first": first_optimizer, "second": [second_optimizer]}

    def call(self, data: Any) -> Any:
        return self.second(self.first(data))

    def train_step(self, data: Any) -> dict[str, Any]:
        loss = 0.0
        for layer, optimizer in ((self.first, self.optimizers["first"]), (self.second, self.optimizers["second"][0])):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(self(data) ** 2)
            gradients = tape.gradient(loss, layer.trainable_variables)
            optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))
        return {"loss": loss}


model = Pair()
model.build((None, 4))
model.compile(keras.optimizers.Adam(1e-2), keras.optimizers.Adam(1e-2))
model.fit(edl.elastic_dataset(x, 16, shuffle=True), epochs=2, callbacks=[edl.KerasCallback()], verbose=0)
out = Path(sys.argv[1]) / str(edl.rank())
out.write_text(repr([weight.tolist() for weight in model.get_weights()]))
