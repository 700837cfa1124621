"""A pipeline of tf.data over TFRecord files: edl deals out the records, `tf.data` parses them and reads ahead.

edl run -np 2 python examples/tfrecord_digits.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

import keras
import tensorflow as tf

import edl.tensorflow as edl

FILES = Path(__file__).resolve().parents[1] / "data" / "digits" / "digits.tfrecord-*.gz"
FEATURES = {"image": tf.io.FixedLenFeature([], tf.string), "digit": tf.io.FixedLenFeature([], tf.int64)}


def parse(records: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """A vector of serialized records, those of one step: as images and digits."""
    fields = tf.io.parse_example(records, FEATURES)
    return tf.cast(tf.io.decode_raw(fields["image"], tf.uint8), tf.float32) / 16, fields["digit"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", default=str(FILES), help="a glob")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch", type=int, default=32)
    options = parser.parse_args()
    edl.init()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)])
    optimizer = edl.Optimizer(keras.optimizers.Adam(0.005), model=model)
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function(reduce_retracing=True)
    def train(images: tf.Tensor, digits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = cross_entropy(digits, logits)
        gradients = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss, tf.reduce_mean(tf.cast(tf.argmax(logits, 1) == digits, tf.float32))

    shards = edl.elastic_shard_generator(options.files, epochs=options.epochs, shuffle=True)
    dataset = edl.elastic_dataset(shards, options.batch).map(parse).prefetch(2)
    recent = edl.register(accuracy=0.0)  # a moving average, which a newcomer gets too
    for images, digits in shards.in_step(dataset):  # keeps what was read ahead, should a mini-batch come again
        with edl.voidable():
            loss, right = train(images, digits)
        if edl.notify_batch_end():
            edl.report(loss=float(loss))
            recent.accuracy += 0.1 * (float(right) - recent.accuracy)
            if edl.step() % 20 == 0 and edl.rank() == 0:
                print(f"step {edl.step()} epoch {edl.epoch()} size {edl.size()} loss {loss:.3f}", flush=True)
    if edl.rank() == 0:
        print(f"of the last mini-batches: accuracy {recent.accuracy:.3f}", flush=True)


if __name__ == "__main__":
    main()
