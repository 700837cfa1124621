"""A worker that computes slowly inside a graph: `function` (a tf.function) or `session` (TensorFlow 1)."""

import argparse
import os
import time

import numpy as np
import tensorflow as tf

import edl.tensorflow as edl

parser = argparse.ArgumentParser()
parser.add_argument("way", choices=["function", "session"])
parser.add_argument("--slow-slot", type=int, default=-1)
options = parser.parse_args()
STEP_S = 0.12 if int(os.environ.get("EDL_SLOT", "0")) == options.slow_slot else 0.04


def slept(tensor: tf.Tensor) -> tf.Tensor:
    def sleep(value: np.ndarray) -> np.ndarray:
        time.sleep(STEP_S)
        return value

    later = tf.numpy_function(sleep, [tensor], tf.float32, stateful=True)
    return tf.ensure_shape(later, tensor.shape)


def loss_of(weight: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.square(weight - slept(tf.cast(tf.reshape(ids, [8]), tf.float32))))


def by_function() -> None:
    weight = tf.Variable(0.0)
    import keras

    optimizer = edl.Optimizer(keras.optimizers.SGD(1e-9))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def train(ids: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(weight, ids)
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])

    for ids in edl.elastic_shard_generator(10_000_000, epochs=10).batches(8):
        with edl.voidable():
            train(tf.constant(ids))
        edl.notify_batch_end()


def by_session() -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default():
        ids, weight = v1.placeholder(tf.int64, [8]), v1.get_variable("weight", ())
        train = edl.Optimizer(v1.train.GradientDescentOptimizer(1e-9)).minimize(loss_of(weight, ids))
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for batch in edl.elastic_shard_generator(10_000_000, epochs=10).batches(8):
                with edl.voidable():
                    session.run(train, {ids: batch})
                edl.notify_batch_end()


edl.init()
by_function() if options.way == "function" else by_session()
