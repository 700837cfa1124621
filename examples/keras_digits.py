"""Handwritten digits with Keras, by epochs, with validation and callbacks: two lines of a plain script are changed.

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
        optimizer=keras.optimizers.Adam(0.005),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    callbacks = [
        keras.callbacks.EarlyStopping(patience=3, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=1),
    ]
    model.fit(
        edl.elastic_dataset((images[:TRAINED], labels[:TRAINED]), options.batch, shuffle=True),  # was: images, labels
        epochs=options.epochs,
        validation_data=(images[TRAINED:], labels[TRAINED:]),
        verbose=2 if edl.rank() == 0 else 0,
        callbacks=[*callbacks, edl.KerasCallback()],  # was: callbacks
    )

    if edl.rank() == 0:
        right = model.predict(images[TRAINED:], verbose=0).argmax(1) == labels[TRAINED:]
        print(f"{right.size} digits that it has not trained on: accuracy {right.mean():.3f}", flush=True)


if __name__ == "__main__":
    main()
