"""Handwritten digits with Keras: `compile` and `fit` stay, the optimizer is wrapped and a callback added.

edl run -np 2 python examples/keras_digits.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import edl.tensorflow as edl

DIGITS = Path(__file__).resolve().parents[1] / "data" / "digits" / "digits.csv.gz"
TRAINED = 1500  # of 1797; the rest is to test with


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch", type=int, default=32)
    options = parser.parse_args()
    edl.init()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    keras.utils.set_random_seed(0)
    table = np.loadtxt(DIGITS, delimiter=",", dtype=np.float32)
    images, labels = table[:, :64] / 16, table[:, 64].astype(np.int64)

    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10, "softmax")],
    )
    model.compile(
        optimizer=edl.Optimizer(keras.optimizers.Adam(0.005), model=model),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )

    shards = edl.elastic_shard_generator(TRAINED, shuffle=True, seed=0)
    ids = edl.elastic_dataset(shards, options.batch)
    dataset = ids.map(lambda ids: (tf.gather(images, ids), tf.gather(labels, ids)))
    model.fit(dataset, epochs=options.epochs, verbose=2 if edl.rank() == 0 else 0, callbacks=[edl.KerasCallback()])

    if edl.rank() == 0:
        right = model.predict(images[TRAINED:], verbose=0).argmax(1) == labels[TRAINED:]
        print(f"{right.size} digits that it has not seen: accuracy {right.mean():.3f}", flush=True)


if __name__ == "__main__":
    main()
