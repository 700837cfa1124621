"""One model in each of TensorFlow's ways of training, by workers that come and go."""

import argparse
import json
import os
import time
import zlib
from pathlib import Path
from typing import Any

import keras
import task
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--way", choices=["eager", "function", "dataset", "fit", "graph"], required=True)
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--step-time", type=float, default=0.05)
parser.add_argument("--epochs", type=int, help="known from the beginning")
parser.add_argument("--until", type=Path, required=True, help="a file that will hold the number of epochs")
options = parser.parse_args()
if options.way == "graph":
    tf.compat.v1.disable_eager_execution()

import edl.tensorflow as edl  # noqa: E402 - as in a script that was written long before edl

tf.config.threading.set_intra_op_parallelism_threads(1)
options.out.mkdir(parents=True, exist_ok=True)
edl.init(batch_size=task.BATCH)
keras.utils.set_random_seed(os.getpid())  # every worker begins with another model, and must be given the job's
inputs, targets = tf.constant(task.INPUTS), tf.constant(task.TARGETS)
shards = edl.elastic_shard_generator(
    task.SAMPLES, epochs=options.epochs if options.way != "fit" else None, shuffle=True
)
extra = edl.register(batches=0)
traces: list[bool] = []  # each time Python runs what TensorFlow traces: is it the rehearsal?
result: dict[str, Any] = {"newcomer": edl.rehearsing()}


def mean_square(wanted: Any, found: Any) -> Any:
    traces.append(edl.rehearsing())
    return tf.reduce_mean(tf.square(wanted - found))


batches: list[int] = []  # checksums of their ids, as the script has them in its hands


def note(ids: Any) -> Any:
    batches.append(zlib.crc32(ids))
    return ids


def before_end() -> None:
    time.sleep(0.0 if options.until.exists() else options.step_time)
    extra.batches += 1


def end_batch() -> None:
    before_end()
    edl.notify_batch_end()


def go_on() -> bool:
    wanted = int(options.until.read_text()) if options.until.exists() else 2**31
    return shards.epochs_done < (options.epochs or wanted)


def small_model() -> keras.Model:
    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(6, "tanh"), keras.layers.Dense(1)])


def tape(traced: bool) -> list[Any]:
    """The custom loop, eagerly or with its step in a tf.function."""
    model = small_model()
    optimizer = edl.Optimizer(keras.optimizers.Adam(0.01), model=model)

    def step(ids: Any) -> None:
        with tf.GradientTape() as recorded:
            loss = mean_square(tf.gather(targets, ids), model(tf.gather(inputs, ids)))
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(recorded.gradient(loss, weights), weights, strict=True))

    train = tf.function(step, input_signature=[tf.TensorSpec([None], tf.int64)]) if traced else step
    while go_on():
        for ids in shards.batches(task.BATCH):
            with edl.voidable():
                train(tf.constant(note(ids)))
            end_batch()
    return [variable.numpy() for variable in (*model.weights, *optimizer.variables)]


def dataset() -> list[Any]:
    """A pipeline of tf.data that reads ahead, in batches; eagerly, as a void mini-batch comes again there."""
    model = small_model()
    optimizer = edl.Optimizer(keras.optimizers.Adam(0.01), model=model)
    pipeline = edl.elastic_dataset(shards, task.BATCH)
    pipeline = pipeline.map(lambda ids: (tf.gather(inputs, ids), tf.gather(targets, ids))).prefetch(3)
    while go_on():
        for rows, wanted in shards.in_step(pipeline):
            with tf.GradientTape() as recorded:
                loss = mean_square(wanted, model(rows))
            weights = model.trainable_variables
            optimizer.apply_gradients(zip(recorded.gradient(loss, weights), weights, strict=True))
            end_batch()
    return [variable.numpy() for variable in (*model.weights, *optimizer.variables)]


def fit() -> list[Any]:
    """Keras's own loop, fed sample by sample through a pipeline that reads ahead."""

    class Before(keras.callbacks.Callback):  # type: ignore[misc]
        rehearsed = False

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            before_end()
            self.rehearsed = edl.rehearsing()

    class After(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if before.rehearsed:
                result["averaged"] = float(self.model.metrics[0].count.numpy())

    before = Before()

    model = small_model()
    ids = tf.data.Dataset.from_generator(shards, output_signature=tf.TensorSpec([], tf.int64)).batch(task.BATCH)
    ids = ids.map(lambda i: tf.ensure_shape(tf.numpy_function(note, [i], tf.int64), [None]))
    dataset = ids.map(lambda i: (tf.gather(inputs, i), tf.gather(targets, i))).prefetch(2)
    optimizer = edl.Optimizer(keras.optimizers.Adam(0.01), model=model)
    model.compile(optimizer=optimizer, loss=mean_square)
    model.fit(
        dataset, epochs=options.epochs, shuffle=False, verbose=0, callbacks=[before, edl.KerasCallback(), After()]
    )
    return [variable.numpy() for variable in (*model.weights, *optimizer.variables)]


def graph() -> list[Any]:
    """Listing 1 of the paper, and the ids of each batch fetched with its update."""
    v1 = tf.compat.v1
    dataset = tf.data.Dataset.from_generator(shards, output_signature=tf.TensorSpec([], tf.int64)).batch(task.BATCH)
    iterator = v1.data.make_initializable_iterator(dataset)
    ids = iterator.get_next()
    weights = [v1.get_variable(f"w{i}", shape) for i, shape in enumerate([(8, 6), (6,), (6, 1), (1,)])]
    hidden = tf.tanh(tf.gather(inputs, ids) @ weights[0] + weights[1])
    loss = mean_square(tf.gather(targets, ids), hidden @ weights[2] + weights[3])
    opt = edl.Optimizer(v1.train.AdamOptimizer(0.01))
    obj = opt.minimize(loss)
    begin = v1.global_variables_initializer()
    v1.get_default_graph().finalize()  # whatever happens from here on adds nothing to it
    with v1.Session() as s:
        s.run(begin)
        while go_on():
            s.run(iterator.initializer)
            while True:
                try:
                    with edl.voidable():
                        note(s.run([obj, ids])[1])
                except tf.errors.OutOfRangeError:
                    break
                end_batch()
        return s.run(v1.global_variables())


WAYS = {
    "eager": lambda: tape(traced=False),
    "function": lambda: tape(traced=True),
    "fit": fit,
    "graph": graph,
    "dataset": dataset,
}
state = WAYS[options.way]()
result |= {"state": [value.tolist() for value in state], "batches": extra.batches, "traces": traces, "checks": batches}
result |= {"rank": edl.rank(), "step": edl.step()}
(options.out / f"result-{os.getpid()}.json").write_text(json.dumps(result))
