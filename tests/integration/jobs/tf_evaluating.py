"""A plain loop of TensorFlow over epochs, outside of `fit`, and an evaluation after each; as torch_evaluating.py."""

import json
import os
import sys
import time
from typing import Any

import keras
import path
import task
import tensorflow as tf

path.parser.add_argument("--each", type=float, default=0.0, help="seconds that each batch of the evaluation takes")
path.parser.add_argument("--batch", type=int, default=128)
options = path.parser.parse_args([*sys.argv[1:], "--way", "evaluating"])

import edl.tensorflow as edl  # noqa: E402

tf.config.threading.set_intra_op_parallelism_threads(1)
edl.init()
keras.utils.set_random_seed(os.getpid())  # every worker begins with another model, and must be given the job's
inputs, targets = tf.constant(task.INPUTS), tf.constant(task.TARGETS)
layers = [keras.layers.Dense(6), keras.layers.BatchNormalization(), keras.layers.Activation("tanh")]
model = keras.Sequential([keras.Input((8,)), *layers, keras.layers.Dense(1)])
optimizer = edl.Optimizer(keras.optimizers.SGD(0.05, momentum=0.9), model=model)
shards = edl.elastic_shard_generator(task.SAMPLES, shuffle=True)
VALIDATED = 101
told = (options.out / f"evaluated-{os.getpid()}.jsonl").open("a")


def tell(**line: Any) -> None:
    told.write(json.dumps(line) + "\n")
    told.flush()


def train(ids: Any) -> None:
    with tf.GradientTape() as tape:
        found = model(tf.gather(inputs, ids), training=True)
        loss = tf.reduce_mean(tf.square(found - tf.gather(targets, ids)))
    weights = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))


def measure(ids: Any) -> dict[str, Any]:
    (options.out / f"evaluating-{os.getpid()}").touch()
    time.sleep(options.each)
    tell(batch=int(ids[0]), epoch=shards.epochs_done)
    found = model(tf.gather(inputs, ids), training=False)
    loss = tf.reduce_sum(tf.square(found - tf.gather(targets, ids)))
    high = tf.reduce_sum(tf.cast(found > 0, tf.int64), axis=0)  # a vector: summed up element by element
    return {"loss": loss, "seen": len(ids), "high": high, "ids": edl.gather_for_metrics(tf.constant(ids))}


while shards.epochs_done < path.epochs_wanted(options):
    for ids in shards.batches(options.batch):
        train(ids)
        trained = edl.gather_for_metrics({"ids": ids, "twice": (2 * ids, ids)})
        path.pause(options)
        if not edl.rehearsing() and edl.own_samples():
            tell(gathered=sorted(trained["ids"].tolist()), twice=int(trained["twice"][0].sum()), step=edl.step())
        edl.notify_batch_end()
    found = edl.evaluate(measure, VALIDATED, batch_size=7)
    ids = found.pop("ids").tolist()
    figures = {
        "loss": found["loss"],
        "seen": found["seen"],
        "high": found["high"].tolist(),
        "in order": ids == [*range(VALIDATED)],
    }
    tell(epoch=shards.epochs_done, step=edl.step(), size=edl.size(), found=figures)
learned = [variable.numpy() for variable in model.weights]
result = {"state": path.digest(learned), "rank": edl.rank(), "step": edl.step(), "batches": 0, "pid": os.getpid()}
(options.out / f"result-{os.getpid()}.json").write_text(json.dumps(result))
