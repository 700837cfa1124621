"""A stream in the loop that a library owns. Each worker writes down which items reached its model."""

import argparse
import importlib
import itertools
import json
import os
import time
from pathlib import Path

import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--library", choices=["lightning", "accelerate", "trainer", "fit", "tf.data"], required=True)
parser.add_argument("--items", type=int, default=320)
parser.add_argument("--steps", type=int, default=32, help="of Hugging Face's Trainer")
parser.add_argument("--step-time", type=float, default=1.0, help="until the size has changed, but for the first ones")
options = parser.parse_args()
options.out.mkdir(parents=True, exist_ok=True)
SHARDS = 8
QUICK = 3  # steps, which the change of size waits for
steps = itertools.count()


def seen(numbers):
    if next(steps) >= QUICK and not (options.out / "changed").exists():
        time.sleep(options.step_time)
    with (options.out / f"seen-{os.getpid()}.jsonl").open("a") as log:
        log.write(json.dumps([int(number) for number in numbers]) + "\n")


def item(number):
    return np.full(8, number / options.items, np.float32), number


def rows(shard):
    return range(shard, options.items, SHARDS)


def of_torch(edl, make=item):
    import torch

    torch.set_num_threads(1)
    return torch.utils.data.DataLoader(edl.ElasticStream(rows, shards=SHARDS).map(make), batch_size=4)


def lightning():
    import lightning.pytorch as pl
    import torch

    importlib.import_module("edl.lightning")  # what it registers
    import edl.torch as edl

    class Net(pl.LightningModule):  # type: ignore[misc]
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)

        def training_step(self, batch, _):
            seen(batch[1])
            return self.layer(batch[0]).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    pl.Trainer(strategy="edl", accelerator="cpu", max_epochs=1, **quiet).fit(Net(), of_torch(edl))


def accelerate():
    import torch

    import edl.torch as edl
    from edl.accelerate import Accelerator

    accelerator, model = Accelerator(cpu=True), torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer, loader = accelerator.prepare(model, optimizer, of_torch(edl))
    for _ in loader.epochs(1):
        for inputs, numbers in loader:
            seen(numbers)
            accelerator.backward(model(inputs).square().mean())
            optimizer.step()
            optimizer.zero_grad()


def trainer():
    import torch
    from transformers import TrainingArguments

    import edl.torch as edl
    from edl.transformers import EdlTrainer

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)

        def forward(self, inputs, labels):
            seen(labels)
            return {"loss": self.layer(inputs).square().mean()}

    stream = of_torch(edl, lambda number: dict(zip(("inputs", "labels"), item(number), strict=True))).dataset
    told = {"max_steps": options.steps, "save_strategy": "no", "report_to": [], "disable_tqdm": True, "use_cpu": True}
    arguments = TrainingArguments(output_dir=str(options.out / "saved"), per_device_train_batch_size=4, **told)
    EdlTrainer(model=Net(), args=arguments, train_dataset=stream).train()


def of_tensorflow():
    import keras
    import tensorflow as tf

    import edl.tensorflow as edl

    tf.config.threading.set_intra_op_parallelism_threads(1)
    edl.init()
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    stream = edl.ElasticStream(rows, shards=SHARDS).map(lambda number: dict(zip("xy", item(number), strict=True)))

    def counted(one):
        tf.numpy_function(seen, [one["y"]], [])
        return one["x"], tf.zeros_like(one["x"][:, :1])

    dataset = edl.elastic_dataset(stream, 4, epochs=1 if options.library == "tf.data" else None)
    return edl, model, keras.optimizers.SGD(0.01), dataset, counted


def fit():
    edl, model, optimizer, dataset, counted = of_tensorflow()
    model.compile(optimizer=edl.Optimizer(optimizer, model=model), loss="mse", run_eagerly=True)
    model.fit(dataset.map(counted), epochs=1, verbose=0, callbacks=[edl.KerasCallback()])


def tf_data():
    import tensorflow as tf

    edl, model, optimizer, dataset, _ = of_tensorflow()
    optimizer = edl.Optimizer(optimizer, model=model)
    for one in dataset:
        seen(one["y"].numpy())
        with edl.voidable():
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(one["x"])))
            optimizer.apply_gradients(
                zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
            )
        edl.notify_batch_end()


loops = {"lightning": lightning, "accelerate": accelerate, "trainer": trainer, "fit": fit, "tf.data": tf_data}
loops[options.library]()
