"""TensorFlow with each of Horovod's elastic states, in a job that is saved and goes on later."""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import keras
import path
import task
import tensorflow as tf

import edl.tensorflow as hvd

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--state", required=True)
parser.add_argument("--step-time", type=float, default=0.05)
parser.add_argument("--epochs", type=int, default=8)
options = parser.parse_args()
tf.config.threading.set_intra_op_parallelism_threads(1)
options.out.mkdir(parents=True, exist_ok=True)
inputs, targets = tf.constant(task.INPUTS), tf.constant(task.TARGETS)
hvd.init()
tf.random.set_global_generator(tf.random.Generator.from_seed(1 + hvd.rank()))
keras.utils.set_random_seed(1 + hvd.rank())  # each draws numbers of its own; the model is that of rank 0
shards = hvd.elastic_shard_generator(
    task.SAMPLES, epochs=None if options.state == "KerasState" else options.epochs, shuffle=True
)


def rows_of(ids: Any) -> Any:
    return tf.gather(inputs, ids), tf.gather(targets, ids)


pipeline = hvd.elastic_dataset(shards, task.BATCH).map(rows_of).prefetch(2)
calls: list[Any] = []


def small_model(*more: Any) -> keras.Model:
    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(6, "tanh"), *more, keras.layers.Dense(1)])


def dropout() -> Any:
    return keras.layers.Dropout(0.2, seed=1 + hvd.rank())


def averaging_step(model: keras.Model, optimizer: Any) -> Any:
    """As in Horovod's examples: the tape averages, and the optimizer is a plain one."""

    def step(rows: Any, wanted: Any) -> None:
        with tf.GradientTape() as recorded:
            noise = tf.random.get_global_generator().normal(tf.shape(rows))
            loss = tf.reduce_mean(tf.square(wanted - model(rows + 0.1 * noise, training=True)))
        weights = model.trainable_variables
        gradients = hvd.DistributedGradientTape(recorded).gradient(loss, [weight.value for weight in weights])
        optimizer.apply_gradients(zip(gradients, weights, strict=True))

    return tf.function(step, input_signature=[tf.TensorSpec((None, 8)), tf.TensorSpec((None, 1))])


def loop(state: Any, step: Any) -> None:
    @hvd.elastic.run
    def train(state: Any) -> None:
        calls.append([state.batch, state.seen, hvd.size()])
        for rows, wanted in pipeline:
            step(rows, wanted)
            time.sleep(options.step_time)
            state.batch += 1
            state.seen.append(int(rows.shape[0]))
            del state.seen[:-3]
            state.commit()

    train(state)


def by_variables() -> tuple[Any, list[Any]]:
    model, optimizer = small_model(), keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)
    variables = [variable.value for variable in (*model.variables, *optimizer.variables)]
    state = hvd.elastic.TensorFlowState(variables=variables, batch=0, seen=[])
    loop(state, averaging_step(model, optimizer))
    return state, variables


def by_model() -> tuple[Any, list[Any]]:
    model, optimizer = small_model(keras.layers.BatchNormalization(), dropout()), keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)
    state = hvd.elastic.TensorFlowKerasState(model, optimizer, batch=0, seen=[])
    loop(state, averaging_step(model, optimizer))
    return state, [*model.trainable_variables, *optimizer.variables]


def by_fit() -> tuple[Any, list[Any]]:
    model = small_model(keras.layers.BatchNormalization(), dropout())
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), loss="mse")
    state: Any = hvd.elastic.KerasState(model, batch=0, seen=[])

    class Counting(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            time.sleep(options.step_time)
            state.batch += 1
            state.seen.append(batch)
            del state.seen[:-3]

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.stop_training = shards.epochs_done >= options.epochs

    @hvd.elastic.run
    def train(state: Any) -> None:
        calls.append([state.batch, state.seen, hvd.size()])
        model.fit(pipeline, epochs=10**6, shuffle=False, verbose=0, callbacks=[Counting(), hvd.KerasCallback()])

    train(state)
    return state, [*model.trainable_variables, *model.optimizer.variables]


state, variables = {"TensorFlowState": by_variables, "TensorFlowKerasState": by_model, "KerasState": by_fit}[
    options.state
]()
learned = path.digest(variable.numpy() for variable in variables)
(options.out / f"calls-{os.getpid()}.json").write_text(json.dumps(calls))
result = {"rank": hvd.rank(), "learned": learned, "more": [state.batch, state.seen]}
(options.out / f"result-{os.getpid()}.json").write_text(json.dumps(result))
