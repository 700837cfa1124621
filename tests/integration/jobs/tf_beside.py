"""A TensorFlow loop whose newcomers get their state beside a step; its sender may be killed as it sends."""

import argparse
import json
import os
import signal
import zlib
from pathlib import Path
from typing import Any

import keras
import numpy as np
import path
import task
import tensorflow as tf

import edl.tensorflow as edl
from edl.tensorflow.tf_state_split import Read

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--step-time", type=float, default=0.04)
parser.add_argument("--epochs", type=int, help="known from the beginning")
parser.add_argument("--until", type=Path, required=True, help="a file that will hold the number of epochs")
parser.add_argument("--kill", type=Path, help="a file: while it is there, a worker that sends its state is killed")
parser.add_argument("--way", choices=["function", "eager", "fit"], default="function")
parser.add_argument("--spectral", action="store_true", help="a layer whose forward pass changes its own weights")
parser.add_argument("--ballast-mb", type=int, default=0, help="more state, of weights that have no gradient")
options = parser.parse_args()
tf.config.threading.set_intra_op_parallelism_threads(1)
options.out.mkdir(parents=True, exist_ok=True)
inputs, targets = tf.constant(task.INPUTS), tf.constant(task.TARGETS)
whole = Read.part


def part(self: Read, begin: int) -> memoryview:
    """The first half of it, and then no more."""
    sends = not edl.rehearsing()  # else it takes over its own
    if sends and begin > self.size // 2 and options.kill is not None and options.kill.exists():
        options.kill.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return whole(self, begin)


Read.part = part  # type: ignore[method-assign]
edl.init(batch_size=4)
keras.utils.set_random_seed(os.getpid())  # every worker begins with another model, and must be given the job's


class Ballast(keras.layers.Layer):  # type: ignore[misc]
    """The optimizer has twice as much for it again."""

    def build(self, _: Any) -> None:
        for number in range(options.ballast_mb // 3):
            self.add_weight(shape=(250_000,), name=f"ballast_{number}")

    def call(self, x: Any) -> Any:
        return x


class Averaging(keras.Model):  # type: ignore[misc]
    """A moving average of its weights is part of it, and changed in its own step."""

    def __init__(self) -> None:
        super().__init__()
        dense = keras.layers.Dense
        last = keras.layers.SpectralNormalization(dense(1)) if options.spectral else dense(1)
        self.trained = keras.Sequential(
            [keras.Input((8,)), dense(700), keras.layers.BatchNormalization(), dense(700, "tanh"), last]
        )
        self.average = keras.models.clone_model(self.trained)
        if options.ballast_mb:
            self.trained = keras.Sequential([keras.Input((8,)), Ballast(), self.trained])
        self.build((None, 8))

    def call(self, x: Any, training: bool = False) -> Any:
        return self.trained(x, training=training)

    def train_step(self, data: Any) -> dict[str, Any]:
        ids = data[0] if isinstance(data, tuple) else data
        with tf.GradientTape() as tape:
            found = self(tf.gather(inputs, ids), training=True)
            loss = tf.reduce_mean(tf.square(tf.gather(targets, ids) - found))
        weights = self.trained.trainable_variables
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, [one.value for one in weights]), 5.0)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        for mine, theirs in zip(self.average.trainable_variables, weights[options.ballast_mb // 3 :], strict=True):
            mine.assign(0.9 * mine + 0.1 * theirs)
        return {"loss": loss}


model = Averaging()
rate = 0.001
optimizer = keras.optimizers.Adam(rate, clipvalue=3.0)
optimizer.build(model.trained.trainable_variables)
model.compile(optimizer=edl.Optimizer(optimizer, model=model))
extra = edl.register(batches=0)
checks: list[int] = []  # of the ids of committed batches
own: list[int] = []  # samples of its own in each mini-batch


def slow_down() -> None:
    """A schedule of the script's own, which changes a variable."""
    optimizer.learning_rate.assign(optimizer.learning_rate * 0.999)
    extra.batches += 1


class InFit(keras.callbacks.Callback):  # type: ignore[misc]
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        path.pause(options)
        if not edl.rehearsing():
            own.append(edl.own_samples())
        slow_down()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.stop_training = shards.epochs_done >= path.epochs_wanted(options)


shards = edl.elastic_shard_generator(task.SAMPLES, epochs=options.epochs, shuffle=True)
if options.way == "fit":
    dataset = edl.elastic_dataset(shards, 4)
    model.fit(dataset, epochs=10**6, shuffle=False, callbacks=[InFit(), edl.KerasCallback()], verbose=0)
else:
    step = tf.function(model.train_step) if options.way == "function" else model.train_step
    while shards.epochs_done < path.epochs_wanted(options):
        for ids in shards.batches(4):
            rehearses, mine = edl.rehearsing(), edl.own_samples()
            path.pause(options)
            with edl.voidable():
                step(tf.constant(ids))
            slow_down()
            if edl.notify_batch_end():
                checks.append(zlib.crc32(np.asarray(ids, np.int64).data))
            if not rehearses:
                own.append(mine)

state = [*model.weights, *optimizer.variables]
statistics = {id(one) for layer in (model.trained, model.average) for one in layer.non_trainable_variables}
result = {
    "rank": edl.rank(),
    "state": path.digest(one.numpy() for one in state if id(one) not in statistics),
    "batches": extra.batches,
    "step": edl.step(),
    "rate": float(optimizer.learning_rate.numpy()),
    "own": own,
    "checks": checks,
}
(options.out / f"result-{os.getpid()}.json").write_text(json.dumps(result))
