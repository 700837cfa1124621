"""The same in TensorFlow, eagerly; or traced, where an argument says so."""

import sys

import numpy as np
import tensorflow as tf

import edl.tensorflow as edl

SAMPLES, BATCH, CLOSE = 7, 4, 2e-2
tf.config.threading.set_intra_op_parallelism_threads(1)
edl.init()
random = np.random.default_rng(0)
KINDS = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64, tf.complex128)
dense = [tf.Variable(tf.cast(random.normal(size=(5, 3)), kind)) for kind in KINDS]
rows = [tf.Variable(tf.cast(random.normal(size=(9, 4)), kind)) for kind in KINDS]
inputs = tf.constant(random.normal(size=(SAMPLES, 5)))


def loss_of(ids):
    taken = tf.gather(inputs, ids)
    found = [tf.cast(taken, one.dtype) @ one for one in dense] + [tf.gather(one, ids) for one in rows]
    return tf.add_n([tf.reduce_mean(tf.square(tf.cast(tf.abs(one), tf.float32))) for one in found])


def gradients(tape_of, ids):
    with tape_of() as tape:
        loss = loss_of(ids)
    return [tf.convert_to_tensor(one) for one in tape.gradient(loss, [*dense, *rows])]


wanted = gradients(tf.GradientTape, tf.range(SAMPLES))
step = lambda ids: gradients(edl.GradientTape, ids)  # noqa: E731
if "traced" in sys.argv:
    step = tf.function(step, input_signature=[tf.TensorSpec([None], tf.int64)])
for ids in edl.elastic_shard_generator(SAMPLES, epochs=3).batches(BATCH):
    for found, whole in zip(step(tf.constant(ids, tf.int64)), wanted, strict=True):
        assert found.dtype == whole.dtype
        wide = tf.complex128 if whole.dtype.is_complex else tf.float64
        np.testing.assert_allclose(tf.cast(found, wide), tf.cast(whole, wide), CLOSE, CLOSE, err_msg=whole.dtype.name)
    assert edl.notify_batch_end()
sys.stdout.write(f"all kinds, on {edl.size()}\n")
