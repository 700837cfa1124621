"""Every kind of TensorFlow's optimizers applies an update with its rate multiplied; prints what became of each.

One epoch each: a graph of TensorFlow 1 with its pipeline in it, a loop, Keras's `fit`.
"""

import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import tensorflow as tf

import edl.tensorflow as edl

edl.init()
edl.scale_rate("linear", base_batch=4)  # alone with batches of 12: three times the rate
edl.schedule_rate(edl.Knee(explore=0.3, warmup=0.5), epochs=3)
shards = edl.elastic_shard_generator(24)
found: dict[str, list[float]] = {}


def graph() -> None:
    """The first samples come inside of it, and with them the first factor."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        iterator = v1.data.make_initializable_iterator(edl.elastic_dataset(shards, 12))
        ids = iterator.get_next()
        weight = v1.get_variable("weight", initializer=0.0)
        loss = weight * tf.reduce_mean(tf.ones_like(ids, tf.float32))
        update = edl.Optimizer(v1.train.GradientDescentOptimizer(0.1)).minimize(loss)
        session.run([v1.global_variables_initializer(), iterator.initializer])
        while True:
            try:
                session.run(update)
            except tf.errors.OutOfRangeError:
                break
            found.setdefault("graph", []).append(float(session.run(weight)))
            edl.notify_batch_end()


def loop() -> None:
    weights = {name: tf.Variable(0.0) for name in ("eager", "function", "scaled", "adam")}
    halving = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
    optimizers = {
        "eager": edl.Optimizer(keras.optimizers.SGD(0.1)),
        "function": edl.Optimizer(keras.optimizers.SGD(halving)),
        "scaled": edl.Optimizer(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=1.0)),
        "adam": edl.Optimizer(tf.compat.v1.train.AdamOptimizer(0.1)),
    }
    one = tf.constant(1.0)

    @tf.function
    def in_a_function() -> None:
        optimizers["function"].apply([tf.identity(one)], [weights["function"]])

    for _ in shards.batches(12):
        optimizers["eager"].apply([one], [weights["eager"]])
        in_a_function()
        optimizers["scaled"].apply([one], [weights["scaled"]])
        optimizers["adam"].minimize(lambda: weights["adam"] * 1.0, var_list=[weights["adam"]])
        for name, weight in weights.items():
            found.setdefault(name, []).append(float(weight))
        edl.notify_batch_end()
    found["rate"] = [float(optimizers["eager"].learning_rate)]


def fit() -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    rows = edl.elastic_dataset(shards, 12).map(lambda ids: (tf.ones([tf.size(ids), 1]), tf.ones([tf.size(ids), 1])))
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: found.setdefault("fit", []).append(float(model.weights[0].numpy()[0, 0]))
    )
    optimizer = edl.Optimizer(keras.optimizers.SGD(0.1), model=model)
    model.compile(optimizer=optimizer, loss=lambda wanted, made: tf.reduce_mean(made))
    model.fit(rows, verbose=0, callbacks=[note, edl.KerasCallback()])


graph()
loop()
fit()
sys.stdout.write(json.dumps(found) + "\n")
