"""TensorFlow whose script catches an exception before its update, on rank 1; EDL_TEST_TRACED as in `tf_tape.py`."""

import os

import keras
import task
import tensorflow as tf

options = task.options()
tf.config.threading.set_intra_op_parallelism_threads(1)
inputs, targets = tf.constant(task.INPUTS), tf.constant(task.TARGETS)
weights = [tf.Variable(value) for value in (*task.FIRST, *task.SECOND)]
optimizer = keras.optimizers.SGD(task.RATE, momentum=task.MOMENTUM)


def train(ids) -> None:
    with tf.GradientTape() as tape:
        hidden = tf.tanh(tf.gather(inputs, ids) @ weights[0] + weights[1])
        loss = tf.reduce_mean(tf.square(hidden @ weights[2] + weights[3] - tf.gather(targets, ids)))
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))


def check(step: int, tries: int, rank: int) -> None:
    if tries == 1 and rank == 1 and step == 10:
        raise RuntimeError("out of memory")


if options.replay:
    rank, steps = 0, task.global_batches(options.replay)
    for chosen in steps:
        train(tf.constant(chosen))
else:
    import edl.tensorflow as edl

    edl.init()
    optimizer = edl.Optimizer(optimizer)
    if os.environ.get("EDL_TEST_TRACED"):
        train = tf.function(train, input_signature=[tf.TensorSpec([None], tf.int64)])
    rank, steps, tries = edl.rank(), [], dict[int, int]()
    for ids in edl.elastic_shard_generator(task.SAMPLES, epochs=task.EPOCHS, shuffle=True).batches(task.BATCH):
        step = edl.step()
        tries[step] = tries.get(step, 0) + 1
        try:
            check(step, tries[step], rank)
            with edl.voidable():
                train(tf.constant(ids))
        except RuntimeError:
            pass
        if edl.notify_batch_end():
            steps.append(ids.tolist())
task.save(options.out, rank, steps, [variable.numpy() for variable in weights])
