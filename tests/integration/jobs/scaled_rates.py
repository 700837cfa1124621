"""Every kind of TensorFlow's optimizers applies an update with its rate multiplied; prints what became of each."""

import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import tensorflow as tf

import edl.tensorflow as edl

edl.init()
edl.scale_rate("linear", base_batch=4)  # alone with batches of 12: three times the rate
found: dict[str, list[float]] = {}
weights = {name: tf.Variable(0.0) for name in ("eager", "function", "scaled", "adam")}
optimizers = {
    "eager": edl.Optimizer(keras.optimizers.SGD(0.1)),
    "function": edl.Optimizer(keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5))),
    "scaled": edl.Optimizer(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=1.0)),
    "adam": edl.Optimizer(tf.compat.v1.train.AdamOptimizer(0.1)),
}


@tf.function
def in_a_function() -> None:
    optimizers["function"].apply([tf.identity(one)], [weights["function"]])


one = tf.constant(1.0)
for _ in edl.elastic_shard_generator(24, epochs=1).batches(12):
    optimizers["eager"].apply([one], [weights["eager"]])
    in_a_function()
    optimizers["scaled"].apply([one], [weights["scaled"]])
    optimizers["adam"].minimize(lambda: weights["adam"] * 1.0, var_list=[weights["adam"]])
    for name, weight in weights.items():
        found.setdefault(name, []).append(float(weight))
    edl.notify_batch_end()
sys.stdout.write(json.dumps(found | {"rate": float(optimizers["eager"].learning_rate)}) + "\n")
