"""TensorFlow in each of its ways of training, in a job that is saved and goes on later."""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import path
import task
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--way", required=True)
parser.add_argument("--step-time", type=float, default=0.05)
parser.add_argument("--epochs", type=int, default=8)
parser.add_argument("--samples", type=int, default=task.SAMPLES)
parser.add_argument("--batch", type=int, default=task.BATCH)
parser.add_argument("--evaluate", type=int, default=0, help="after that step it evaluates, until its job ends")
options = parser.parse_args()
if options.way == "graph":
    tf.compat.v1.disable_eager_execution()

import edl.tensorflow as edl  # noqa: E402 - as in a script that was written long before edl

tf.config.threading.set_intra_op_parallelism_threads(1)
options.out.mkdir(parents=True, exist_ok=True)
edl.init(batch_size=options.batch)
keras.utils.set_random_seed(1 + edl.rank())  # each draws numbers of its own; the model is that of rank 0
inputs, targets = (
    tf.constant(np.resize(one, (options.samples, *one.shape[1:]))) for one in (task.INPUTS, task.TARGETS)
)
shards = edl.elastic_shard_generator(
    options.samples, epochs=None if options.way == "fit" else options.epochs, shuffle=True
)
extra = edl.register(batches=0)


def end_batch() -> None:
    time.sleep(options.step_time)
    extra.batches += 1
    edl.notify_batch_end()


def evaluate(model: keras.Model) -> None:
    """All workers after the same step; it draws no random numbers."""
    while edl.step() == options.evaluate:
        (options.out / f"evaluates-{edl.rank()}").touch()
        model(inputs, training=False)
        time.sleep(0.01)


def small_model() -> keras.Model:
    dropout = keras.layers.Dropout(0.2, seed=1 + edl.rank())
    layers = [keras.layers.Dense(6, "tanh"), keras.layers.BatchNormalization(), dropout, keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((8,)), *layers])


def mean_square(wanted: Any, found: Any) -> Any:
    return tf.reduce_mean(tf.square(wanted - found))


def values(*holders: Any) -> list[Any]:
    return [variable.numpy() for holder in holders for variable in holder]


def function() -> list[Any]:
    model = small_model()
    optimizer = edl.Optimizer(keras.optimizers.Adam(0.01), model=model)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def train(ids: tf.Tensor) -> None:
        with edl.GradientTape() as tape:
            loss = mean_square(tf.gather(targets, ids), model(tf.gather(inputs, ids), training=True))
        weights = model.trainable_variables
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, weights), 0.5)
        optimizer.apply_gradients(zip(gradients, weights, strict=True))

    for ids in shards.batches(options.batch):
        with edl.voidable():
            train(tf.constant(ids))
        end_batch()
        evaluate(model)
    return values(model.trainable_variables, optimizer.variables)


def dataset() -> list[Any]:
    """A pipeline of tf.data that reads ahead; the loop is the script's own."""
    model = small_model()
    optimizer = edl.Optimizer(keras.optimizers.Adam(0.01), model=model)
    pipeline = edl.elastic_dataset(shards, options.batch)
    pipeline = pipeline.map(lambda ids: (tf.gather(inputs, ids), tf.gather(targets, ids))).prefetch(3)
    for rows, wanted in shards.in_step(pipeline):
        with tf.GradientTape() as tape:
            loss = mean_square(wanted, model(rows, training=True))
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        end_batch()
        evaluate(model)
    return values(model.trainable_variables, optimizer.variables)


def fit() -> list[Any]:
    """As many epochs as there are in all: each iteration is one."""

    class Counting(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            time.sleep(options.step_time)
            extra.batches += 1

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.stop_training = shards.epochs_done >= options.epochs

    model = small_model()
    ids = tf.data.Dataset.from_generator(shards, output_signature=tf.TensorSpec([], tf.int64)).batch(options.batch)
    rows = ids.map(lambda i: (tf.gather(inputs, i), tf.gather(targets, i))).prefetch(2)
    optimizer = edl.Optimizer(keras.optimizers.Adam(0.01, global_clipnorm=0.5), model=model)
    model.compile(optimizer=optimizer, loss=mean_square)
    model.fit(rows, epochs=10**6, shuffle=False, verbose=0, callbacks=[Counting(), edl.KerasCallback()])
    return values(model.trainable_variables, optimizer.variables)


def graph() -> list[Any]:
    v1 = tf.compat.v1
    ids = v1.placeholder(tf.int64, [None])
    weights = [v1.get_variable(f"w{i}", shape) for i, shape in enumerate([(8, 6), (6,), (6, 1), (1,)])]
    hidden = tf.tanh(tf.gather(inputs, ids) @ weights[0] + weights[1])
    loss = mean_square(tf.gather(targets, ids), hidden @ weights[2] + weights[3])
    train = edl.Optimizer(v1.train.AdamOptimizer(0.01)).minimize(loss)
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        for batch in shards.batches(options.batch):
            with edl.voidable():
                session.run(train, {ids: batch})
            end_batch()
        return list(session.run(v1.global_variables()))


state = {"function": function, "dataset": dataset, "fit": fit, "graph": graph}[options.way]()
result = {"rank": edl.rank(), "learned": path.digest(state), "more": extra.batches}
(options.out / f"result-{os.getpid()}.json").write_text(json.dumps(result))
