"""Keras as its documentation has it: arrays, epochs, validation, and the callbacks that count or write; then what each
worker has seen of it, epoch by epoch.

The two lines that edl changes are marked; the rest is for the test to look at.
"""

import json
import os
import time
from pathlib import Path

import keras
import numpy as np
import path
import task
import tensorflow as tf

path.parser.set_defaults(way="fit")
path.parser.add_argument("--validation", type=float, default=0.0, help="seconds that a validation batch takes")
path.parser.add_argument("--patience", type=int, default=10**6)
options = path.parser.parse_args([*__import__("sys").argv[1:], "--way", "fit"])

import edl.tensorflow as edl  # noqa: E402 - the script below is older than this line

edl.init()
tf.config.threading.set_intra_op_parallelism_threads(1)
keras.utils.set_random_seed(1)
VALIDATED = 101
x_val = np.resize(task.INPUTS, (VALIDATED, 8))
y_val = np.resize(task.TARGETS, (VALIDATED, 1))


class Counted(keras.metrics.Metric):  # type: ignore[misc]
    """How many samples: each once, or the sum is another."""

    def __init__(self) -> None:
        super().__init__(name="seen")
        self.count = self.add_variable((), "zeros", dtype="float32", name="count")

    def update_state(self, wanted, found, sample_weight=None) -> None:
        self.count.assign_add(tf.cast(tf.shape(wanted)[0], tf.float32))

    def result(self):
        return tf.identity(self.count)


class Telling(keras.callbacks.Callback):  # type: ignore[misc]
    """What a callback hears, in a file of this worker's."""

    def __init__(self) -> None:
        super().__init__()
        self.file = (options.out / f"epochs-{os.getpid()}.jsonl").open("a")

    def tell(self, **line) -> None:
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
        self.tell(begins=epoch, rank=edl.rank(), generation=edl.generation())

    def on_train_batch_end(self, batch, logs=None):
        path.pause(options)

    def on_test_begin(self, logs=None):
        (options.out / f"validates-{self.epoch}-{os.getpid()}").touch()

    def on_test_batch_end(self, batch, logs=None):
        time.sleep(options.validation)

    def on_epoch_end(self, epoch, logs=None):
        logs = {name: float(value) for name, value in logs.items()}
        early = {"wait": stopping.wait, "best": stopping.best}
        plateau = {"wait": reducing.wait, "rate": float(self.model.optimizer.learning_rate)}
        self.tell(ends=epoch, step=edl.step() - 1, logs=logs, stopping=early, plateau=plateau)
        if epoch + 1 >= path.epochs_wanted(options):
            self.model.stop_training = True


options.out.mkdir(parents=True, exist_ok=True)
stopping = keras.callbacks.EarlyStopping(monitor="val_loss", patience=options.patience)
reducing = keras.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.9, patience=2, min_delta=0.01)
callbacks = [
    keras.callbacks.ModelCheckpoint(str(options.out / "epoch-{epoch:04d}.weights.h5"), save_weights_only=True),
    stopping,
    reducing,
    keras.callbacks.TensorBoard(str(options.out / "board")),
    Telling(),
]
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(6, "tanh"), keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse", metrics=[Counted()])
history = model.fit(
    edl.elastic_dataset((task.INPUTS, task.TARGETS), task.BATCH, shuffle=True),  # was: inputs, targets, batch_size=...
    epochs=options.epochs or 10**6,
    validation_data=(x_val, y_val),
    validation_batch_size=7,
    verbose=0,
    callbacks=[*callbacks, edl.KerasCallback()],  # was: callbacks
)
learned = [variable.numpy() for variable in (*model.weights, *model.optimizer.variables)]
result = {"state": path.digest(learned), "rank": edl.rank(), "step": edl.step(), "epochs": history.epoch}
result |= {"pid": os.getpid(), "batches": 0, "history": history.history}
Path(options.out / f"result-{os.getpid()}.json").write_text(json.dumps(result))
