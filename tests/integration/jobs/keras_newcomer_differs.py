"""Keras: a newcomer does something else than the others, as its script counts steps by itself."""

import argparse
import time
from pathlib import Path

import keras
import tensorflow as tf

import edl.tensorflow as edl

parser = argparse.ArgumentParser()
parser.add_argument("--until", type=Path, required=True, help="train until the step that this file names")
parser.add_argument("--fault", choices=["rate"], required=True)
options = parser.parse_args()
tf.config.threading.set_intra_op_parallelism_threads(1)
edl.init()
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
optimizer = edl.Optimizer(keras.optimizers.SGD(0.05), model=model)


@tf.function(input_signature=[tf.TensorSpec([None, 4])])
def train(inputs):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(inputs, training=True)))
    variables = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


joined = None
for ids in edl.elastic_shard_generator(1 << 20, epochs=1).batches(4):
    if joined is None and not edl.rehearsing():
        joined = edl.step()
    count = 0 if joined is None else edl.step() - joined  # without void mini-batches, of which survivors differ
    optimizer.learning_rate = 0.05 * 0.99**count
    with edl.voidable():
        train(tf.random.uniform((len(ids), 4)))
    time.sleep(0.02)
    edl.notify_batch_end()
    if options.until.exists() and edl.step() > int(options.until.read_text()):
        break
