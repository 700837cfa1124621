"""Keras: rank 1 changes a weight outside the optimizer."""

import keras
import tensorflow as tf

import edl.tensorflow as edl

tf.config.threading.set_intra_op_parallelism_threads(1)
edl.init()


class Ballast(keras.layers.Layer):  # type: ignore[misc]
    """A state so large that it is compared beside the next mini-batch."""

    def build(self, _):
        self.add_weight(shape=(1 << 23,), trainable=False, initializer="zeros")

    def call(self, inputs):
        return inputs


layers = [Ballast(), keras.layers.Dense(16, "relu"), keras.layers.BatchNormalization(), keras.layers.Dropout(0.1)]
model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1, name="last")])
optimizer = edl.Optimizer(keras.optimizers.Adam(0.01), model=model)


@tf.function(input_signature=[tf.TensorSpec([None, 4])])
def train(inputs):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(inputs, training=True)))
    variables = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


for ids in edl.elastic_shard_generator(6400, epochs=1).batches(8):
    train(tf.random.uniform((len(ids), 4)))
    if edl.rank() == 1 and edl.step() == 17:
        model.get_layer("last").bias.assign_add([0.1])
    edl.notify_batch_end()
