"""Trains one of three models of TensorFlow with virtual workers, and tells the digest of all that it has trained."""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import edl.tensorflow as edl

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--model", choices=("mlp", "cnn", "transformer"), default="mlp")
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--pace", type=Path, help="file with the seconds that a step takes at least")
parser.add_argument("--loading", type=int, default=-1, help="0: a tf.data.Dataset; -1: ids")
parser.add_argument("--eager", action="store_true", help="no tf.function")
parser.add_argument("--wrong", choices=("", "rounding", "order"), default="")
options = parser.parse_args()

SAMPLES = 203
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.experimental.enable_op_determinism()
keras.utils.set_random_seed(5)
drawn = np.random.default_rng(1)
inputs = drawn.standard_normal((SAMPLES, 64)).astype(np.float32)
targets = drawn.integers(10, size=SAMPLES)
layers = keras.layers


def mlp():
    return keras.Sequential(
        [keras.Input((64,)), layers.Dense(48, activation="gelu"), layers.Dropout(0.2), layers.Dense(10)]
    )


def cnn():
    return keras.Sequential([
        keras.Input((64,)), layers.Reshape((8, 8, 1)), layers.Conv2D(8, 3, padding="same"),
        layers.BatchNormalization(momentum=0.9), layers.ReLU(), layers.Conv2D(8, 3, strides=2),
        layers.BatchNormalization(momentum=0.9), layers.ReLU(), layers.Flatten(), layers.Dense(10),
    ])  # fmt: skip


def transformer():
    given = keras.Input((64,))
    rows = layers.Dense(16)(layers.Reshape((8, 8))(given))
    for _ in range(2):
        attended = layers.MultiHeadAttention(2, 8, dropout=0.1)(rows, rows)
        rows = layers.LayerNormalization()(rows + attended)
        inner = layers.Dropout(0.1)(layers.Dense(16)(layers.Dense(32, activation="relu")(rows)))
        rows = layers.LayerNormalization()(rows + inner)
    return keras.Model(given, layers.Dense(10)(layers.GlobalAveragePooling1D()(rows)))


model = {"mlp": mlp, "cnn": cnn, "transformer": transformer}[options.model]()
if options.model == "transformer":
    schedule = keras.optimizers.schedules.CosineDecay(1e-4, 400, warmup_target=3e-3, warmup_steps=20)
    optimizer = keras.optimizers.AdamW(schedule, use_ema=True, ema_momentum=0.9)
else:
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9)

edl.init()
optimizer = edl.Optimizer(optimizer, model=model)
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def gradients_of(x, y, share):
    with tf.GradientTape() as tape:
        loss = loss_of(y, model(x, training=True)) * share
    return tape.gradient(loss, model.trainable_variables)


def update(gradients):
    if options.model == "transformer":
        gradients, _ = tf.clip_by_global_norm(gradients, 0.5)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


if not options.eager:
    gradients_of, update = tf.function(gradients_of), tf.function(update)


def digest() -> str:
    found = hashlib.sha256()
    for one in (*model.weights, *optimizer.variables):
        found.update(one.path.encode() + np.asarray(one.numpy()).tobytes())
    return found.hexdigest()


shards = edl.elastic_shard_generator(SAMPLES, epochs=options.epochs, shuffle=True)
batches = shards.batches(4)
if options.loading >= 0:
    batches = edl.elastic_dataset(shards, 4).map(lambda ids: (tf.gather(inputs, ids), tf.gather(targets, ids)))
for batch in batches:
    swapped = options.wrong == "order" and edl.step() == 7
    for part, share in edl.microbatches(np.concatenate([batch[1::-1], batch[2:]]) if swapped else batch):
        x, y = part if options.loading >= 0 else (inputs[part], targets[part])
        noise = 0.01 * (random.random() + np.random.rand() + tf.random.uniform(()))  # noqa: NPY002 - as scripts draw
        gradients = gradients_of(tf.convert_to_tensor(x + noise), tf.convert_to_tensor(y), tf.constant(share))
        edl.add_gradients(gradients, model.trainable_variables)
    with edl.voidable():
        update(edl.summed_gradients(model.trainable_variables))
    if options.wrong == "rounding" and edl.step() == 7:
        first = model.trainable_variables[0]
        first.assign(np.nextafter(first.numpy(), np.inf))
    if options.pace is not None:
        time.sleep(float(options.pace.read_text() or 0))
    edl.notify_batch_end()
(options.out / f"digest{edl.rank()}.{edl.size()}.json").write_text(
    json.dumps({"digest": digest(), "step": edl.step() - 1, "size": edl.size(), "generation": edl.generation()})
)
