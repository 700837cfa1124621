"""Keras 3 `compile` and `fit`, fed sample by sample through tf.data."""

import keras
import task
import tensorflow as tf

options = task.options()
tf.config.threading.set_intra_op_parallelism_threads(1)
inputs, targets = tf.constant(task.INPUTS), tf.constant(task.TARGETS)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(6, "tanh"), keras.layers.Dense(1)])
model.set_weights([*task.FIRST, *task.SECOND])
optimizer = keras.optimizers.SGD(task.RATE, momentum=task.MOMENTUM)

if options.replay:
    steps = task.global_batches(options.replay)
    model.compile(optimizer=optimizer, loss="mse")
    for ids in steps:
        model.train_on_batch(task.INPUTS[ids], task.TARGETS[ids])
    rank = 0
else:
    import edl.tensorflow as edl

    edl.init(batch_size=task.BATCH)
    rank, passes = edl.rank(), []
    shards = edl.elastic_shard_generator(task.SAMPLES, shuffle=True)

    def samples():
        passes.append([])
        for sample in shards():
            passes[-1].append(int(sample))
            yield sample

    ids = tf.data.Dataset.from_generator(samples, output_signature=tf.TensorSpec([], tf.int64))
    dataset = ids.map(lambda i: (tf.gather(inputs, i), tf.gather(targets, i))).batch(task.BATCH).prefetch(2)
    model.compile(optimizer=edl.Optimizer(optimizer, model=model), loss="mse")
    model.fit(dataset, epochs=task.EPOCHS, verbose=0, callbacks=[edl.KerasCallback()])
    steps = [batch for one in passes for batch in task.cut(one)]
task.save(options.out, rank, steps, model.get_weights())
