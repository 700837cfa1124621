"""Handwritten digits with TensorFlow 2."""

import argparse
import time
from pathlib import Path

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--data", type=Path, default=Path("data/digits/digits.csv.gz"))
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--lr", type=float, default=0.003)
parser.add_argument("--step-time", type=float, default=0.0, help="seconds that a step takes at least, to watch it")
options = parser.parse_args()

hvd.init()
tf.config.threading.set_intra_op_parallelism_threads(1)
gpus = tf.config.list_physical_devices("GPU")
if gpus:
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

table = np.loadtxt(options.data, delimiter=",", dtype=np.float32)
images, labels = table[:, :64].reshape(-1, 8, 8, 1) / 16, table[:, 64].astype(np.int64)

dataset = tf.data.Dataset.from_tensor_slices((images[:1500], labels[:1500]))
dataset = dataset.repeat().shuffle(1500).batch(options.batch_size)

model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(16, 3, activation="relu"),
        keras.layers.MaxPooling2D(2),
        keras.layers.Flatten(),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(10),
    ]
)
cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = keras.optimizers.Adam(options.lr * hvd.size())
optimizer.build(model.trainable_variables)


@tf.function(reduce_retracing=True)
def training_step(image, label):
    with tf.GradientTape() as tape:
        loss = cross_entropy(label, model(image, training=True))
    tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


@hvd.elastic.run
def train(state):
    steps = options.epochs * 1500 // options.batch_size // hvd.size()
    for image, label in dataset.take(steps - state.batch):
        loss = training_step(image, label)
        time.sleep(options.step_time)
        if state.batch % 20 == 0 and hvd.rank() == 0:
            print(f"batch {state.batch} size {hvd.size()} loss {loss:.3f}", flush=True)
        state.batch += 1
        state.commit()


def on_state_reset():
    optimizer.learning_rate.assign(options.lr * hvd.size())


variables = [variable.value for variable in (*model.variables, *optimizer.variables) if variable.dtype == "float32"]
state = hvd.elastic.TensorFlowState(variables=variables, batch=0)
state.register_reset_callbacks([on_state_reset])
train(state)
if hvd.rank() == 0:
    right = (model(images[1500:]).numpy().argmax(1) == labels[1500:]).mean()
    print(f"accuracy {right:.3f}", flush=True)
