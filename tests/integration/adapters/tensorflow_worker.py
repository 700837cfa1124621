"""A TensorFlow worker for `tests/integration/test_ring_tensorflow.py`. Arguments: worker id, way, optimizer."""

from __future__ import annotations

import functools
import sys
import time
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).parent))

from seat import FakeTrainer, serve
from tensorflow_values import Registered

from edl.tensorflow import kernels
from edl.tensorflow.keras_fit import ElasticFit, Fits
from edl.tensorflow.tf_framework import TensorFlowFramework
from edl.tensorflow.tf_reducer import AveragingTape

CLIP = 0.2  # less than most gradients here
WAY, KIND = sys.argv[2:4]
if WAY == "function without kernels":
    WAY = "function"
    kernels._loaded = lambda: None  # type: ignore[assignment] # as where they were not built, or on a GPU
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)

trainer = FakeTrainer()
framework = TensorFlowFramework()
if WAY != "graph":
    framework.measure_noise()


class Keras:
    """A Keras model, trained eagerly, in a `tf.function` or by `fit`."""

    def __init__(self) -> None:
        import keras

        keras.utils.set_random_seed(int(sys.argv[1][1:]))  # each worker starts from weights of its own
        self.model = keras.Sequential(
            [
                keras.Input((6,)),
                keras.layers.Dense(8, activation="tanh"),
                keras.layers.BatchNormalization(trainable=False),  # its statistics are state all the same
                keras.layers.Dense(1),
            ]
        )
        if KIND == "plain":
            self.optimizer = keras.optimizers.SGD(1.0)
        elif KIND == "sgd":
            self.optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
        elif KIND == "clipped":
            clipping = {"global_clipnorm": CLIP} if WAY == "fit" else {}
            self.optimizer = keras.optimizers.SGD(0.05, momentum=0.9, **clipping)
        else:
            self.optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.1)
        framework.wrap(trainer, self.optimizer, self.model)
        self.model.compile(optimizer=self.optimizer, loss="mse")
        self.fit_calls = ElasticFit(trainer, framework.ring, Fits(), trainer.notify_batch_end)
        self.traced = tf.function(self.step) if WAY == "function" else self.step

    def step(self, x: Any, y: Any) -> None:
        with self.tape() as tape:
            loss = tf.reduce_mean(tf.square(self.model(x, training=True)[:, 0] - y))
        variables = self.model.trainable_variables
        gradients = tape.gradient(loss, variables)
        if KIND == "clipped":
            gradients, _ = tf.clip_by_global_norm(gradients, CLIP)
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))

    def tape(self) -> Any:
        if KIND == "clipped":
            return AveragingTape(framework.tape_reducer(trainer), persistent=False, watch_accessed_variables=True)
        return tf.GradientTape()

    def train(self, x: Any, y: Any) -> None:
        if WAY == "fit":
            self.model.fit(x, y, batch_size=len(y), shuffle=False, verbose=0, callbacks=[self.fit_calls])
        else:
            self.traced(tf.constant(x), tf.constant(y))

    def weights(self) -> list[Any]:
        return self.model.get_weights()

    def set_weights(self, weights: list[Any]) -> None:
        self.model.set_weights(weights)

    def slots(self) -> list[Any]:
        return [variable.numpy() for variable in self.optimizer.variables]

    def disturb(self) -> None:
        self.optimizer.learning_rate.assign(123.0)
        self.model.layers[1].moving_mean.assign_add(tf.ones(8))


class Graph:
    """A graph of TensorFlow 1 in a session."""

    def __init__(self) -> None:
        v1 = tf.compat.v1
        v1.disable_v2_behavior()
        v1.set_random_seed(int(sys.argv[1][1:]))
        self.x, self.y = v1.placeholder(tf.float32, (None, 6)), v1.placeholder(tf.float32, (None,))
        first = v1.get_variable("first", (6, 8), initializer=v1.random_normal_initializer(0.1))
        second = v1.get_variable("second", (8, 1), initializer=v1.random_normal_initializer(0.1))
        self.trained = [first, second]
        loss = tf.reduce_mean(tf.square((tf.tanh(self.x @ first) @ second)[:, 0] - self.y))
        kinds = {
            "plain": lambda: v1.train.GradientDescentOptimizer(1.0),
            "sgd": lambda: v1.train.MomentumOptimizer(0.05, 0.9),
        }
        optimizer = kinds.get(KIND, lambda: v1.train.AdamOptimizer(0.01))()
        framework.wrap(trainer, optimizer, None)
        self.operation = optimizer.minimize(loss)
        self.session = v1.Session(config=v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1))
        self.session.__enter__()
        self.session.run(v1.global_variables_initializer())
        self.session.graph.finalize()

    def train(self, x: Any, y: Any) -> None:
        self.session.run(self.operation, {self.x: x, self.y: y})

    def weights(self) -> list[Any]:
        return self.session.run(self.trained)

    def set_weights(self, weights: list[Any]) -> None:
        for variable, value in zip(self.trained, weights, strict=True):
            variable.load(value, self.session)

    def slots(self) -> list[Any]:
        return self.session.run(self.session.graph.get_collection("variables"))

    def disturb(self) -> None:
        self.train(np.ones((1, 6), np.float32), np.ones(1, np.float32))


registered = None if WAY == "graph" else Registered(int(sys.argv[1][1:]) + 1)
job = Graph() if WAY == "graph" else Keras()


def train(x: list[list[float]], y: list[float]) -> str:
    """One step. The loss is the mean over this worker's samples, as in any script. An empty share computes on junk."""
    samples = np.array(x or [[np.nan] * 6], np.float32), np.array(y or [1.0], np.float32)
    try:
        job.train(*samples)
    except tf.errors.OpError as error:
        if not framework.ring.is_failure(error):
            raise
        trainer.void(error)
    return trainer.take_error()


def train_without_samples(x: list[list[float]], y: list[float]) -> str:
    """A step in which no worker has any, on stand-ins; as the trainer frames it."""
    framework.set_weight(0.0, weightless=True)
    framework.keep(only_statistics=False)
    error = train(x, y)
    framework.put_back()
    return error


def gradient(x: list[list[float]], y: list[float]) -> list[float]:
    """That of the global batch: what one step of rate 1 makes of the weights, which then are as they were."""
    before = job.weights()
    assert train(x, y) == ""
    after = job.weights()
    job.set_weights(before)
    return np.subtract(flat(before), flat(after)).tolist()


def noise(x: list[list[float]], y: list[float]) -> list[Any]:
    """One step in which it is measured: this worker's own gradient, and what came of it."""
    variables = job.model.trainable_variables
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(job.model(np.array(x or [[1.0] * 6], np.float32))[:, 0] - np.array(y or [1.0])))
    own = [one * bool(x) for one in flat(tape.gradient(loss, variables))]
    framework.expect_noise(due=True)
    assert train(x, y) == ""
    framework.expect_noise(due=False)
    found = framework.take_noise()
    assert train(x, y) == "" and framework.take_noise() == found
    return [own, found]


def flat(arrays: list[Any]) -> list[float]:
    return np.concatenate([np.asarray(array, np.float64).ravel() for array in arrays]).tolist()


class Branches:
    """Variables of which each worker's loss may depend on others: the first is sparse."""

    def __init__(self) -> None:
        import keras

        self.variables = [tf.Variable(tf.ones((3, 2))), tf.Variable(1.0), tf.Variable(1.0), tf.Variable(1.0)]
        self.optimizer = keras.optimizers.SGD(0.5, momentum=0.5, weight_decay=0.5)
        framework.wrap(trainer, self.optimizer, None)

    def step(self, used: list[int]) -> list[Any]:
        """Eagerly. The loss grows by one with each that is used."""
        with tf.GradientTape() as tape:
            losses = [
                tf.reduce_sum(tf.gather(self.variables[0], [0])) if one == 0 else self.variables[one] for one in used
            ]
            loss = tf.add_n(losses)
        pairs = zip(tape.gradient(loss, self.variables), self.variables, strict=True)
        self.optimizer.apply_gradients(list(pairs))
        return [trainer.take_error(), *(variable.numpy().tolist() for variable in self.variables)]


@functools.cache
def branches() -> Branches:
    """Only where it is asked for: it adds to the state."""
    return Branches()


def ask_beside(first: bool) -> list[Any]:
    """Of the ring whether all say the same, while a collective of the script's own is under way: before that, or after
    it, which so ends only when that question is on its way elsewhere.
    """
    early = framework.ring.same(7) if first else None
    time.sleep(0.0 if first else 0.5)
    mean = float(hvd.allreduce(tf.constant(float(first)), name="loss"))
    answer = early or framework.ring.same(7)
    return [mean, answer()]


def disturb() -> None:
    """What a rehearsal leaves behind."""
    job.disturb()
    train([[1.0] * 6], [1.0])


commands = {
    "train": train,
    "train_without_samples": train_without_samples,
    "gradient": gradient,
    "weights": lambda: flat(job.weights()),
    "slots": lambda: [flat(job.slots()), registered and registered.shown()],
    "disturb": disturb,
    "noise": noise,
    "ask_beside": ask_beside,
    "branches": lambda used: branches().step(used),
}
serve(framework, commands, registered.values() if registered else {})
