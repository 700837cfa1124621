"""One worker of benchmarks/library_pause.py: a training of a library, or the bare loop, notes where each step begins.

All train the same two layers on the same made-up samples, by a step that takes 20 ms at least. A step of PyTorch begins
in the model's `forward`, one of Keras in `on_train_batch_begin`: code of the script's in the library's own loop.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

STEP_S = 0.02  # what a step takes at least: the rest of a step of a real model
SAMPLES, FEATURES, WIDTH, BATCH = 4_000_000, 64, 256, 8  # no epoch ends while it is measured


class Notes:
    """A line for each step, but those of a rehearsal."""

    def __init__(self, folder: Path, edl: Any) -> None:
        self._file = (folder / f"{os.getpid()}.steps").open("w", buffering=1)
        self._edl = edl

    def step(self) -> None:
        """It begins; and takes as long as one of a real model."""
        if not self._edl.rehearsing():
            self._file.write(f"{time.time():.6f} {self._edl.size()} {self._edl.generation()}\n")
        time.sleep(STEP_S)


class TorchTask:
    """Model, optimizer and data of all that stands on PyTorch."""

    def __init__(self, folder: Path) -> None:
        import torch

        import edl.torch as edl

        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.edl, notes = edl, Notes(folder, edl)

        class Net(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                inner, outer = torch.nn.Linear(FEATURES, WIDTH), torch.nn.Linear(WIDTH, 1)
                self.layers = torch.nn.Sequential(inner, torch.nn.ReLU(), outer)

            def forward(self, inputs: Any) -> dict[str, Any]:
                notes.step()
                return {"loss": self.layers(inputs).square().mean()}

        class Samples(torch.utils.data.Dataset[Any]):
            def __len__(self) -> int:
                return SAMPLES

            def __getitem__(self, number: int) -> dict[str, Any]:
                return {"inputs": torch.full((FEATURES,), float(number % 7))}

        self.model, self.samples = Net(), Samples()

    def optimizer(self) -> Any:
        import torch

        return torch.optim.SGD(self.model.parameters(), lr=0.001, momentum=0.9)

    def loader(self) -> Any:
        """As a script has it that trains alone."""
        from torch.utils.data import DataLoader

        return DataLoader(self.samples, batch_size=BATCH, shuffle=True)


def train_torch(folder: Path) -> None:
    task = TorchTask(folder)
    task.edl.init()
    loader = task.edl.ElasticDataLoader(task.samples, batch_size=BATCH, shuffle=True)
    optimizer = task.edl.Optimizer(task.optimizer(), model=task.model)
    for batch in loader:
        optimizer.zero_grad()
        task.model(**batch)["loss"].backward()
        optimizer.step()
        task.edl.notify_batch_end()


def train_lightning(folder: Path) -> None:
    import lightning.pytorch as pl

    import edl.lightning  # noqa: F401 - the strategy, by its name

    task = TorchTask(folder)

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = task.model

        def training_step(self, batch: Any) -> Any:
            return self.net(**batch)["loss"]

        def configure_optimizers(self) -> Any:
            return task.optimizer()

    shown = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = pl.Trainer(strategy="edl", accelerator="cpu", max_epochs=1, logger=False, **shown)
    trainer.fit(Module(), task.loader())


def train_trainer(folder: Path) -> None:
    from transformers import TrainingArguments

    from edl.transformers import EdlTrainer

    task = TorchTask(folder)
    shown = {"logging_strategy": "no", "disable_tqdm": True, "report_to": []}
    told = TrainingArguments(
        output_dir=str(folder / "saved"),
        num_train_epochs=1,
        per_device_train_batch_size=BATCH,
        max_grad_norm=0.0,
        lr_scheduler_type="constant",
        save_strategy="no",
        use_cpu=True,
        **shown,
    )
    EdlTrainer(task.model, told, train_dataset=task.samples, optimizers=(task.optimizer(), None)).train()


def train_accelerate(folder: Path) -> None:
    from edl.accelerate import Accelerator

    task = TorchTask(folder)
    accelerator = Accelerator(cpu=True)
    model, optimizer, loader = accelerator.prepare(task.model, task.optimizer(), task.loader())
    for _ in loader.epochs(1):
        for batch in loader:
            optimizer.zero_grad()
            accelerator.backward(model(**batch)["loss"])
            optimizer.step()


class TensorFlowTask:
    """The same in TensorFlow."""

    def __init__(self, folder: Path) -> None:
        import keras
        import tensorflow as tf

        import edl.tensorflow as edl

        tf.config.threading.set_intra_op_parallelism_threads(1)
        keras.utils.set_random_seed(0)
        edl.init()
        self.edl, self.notes = edl, Notes(folder, edl)
        self.model = keras.Sequential(
            [keras.Input((FEATURES,)), keras.layers.Dense(WIDTH, "relu"), keras.layers.Dense(1)]
        )
        self.optimizer = keras.optimizers.SGD(0.001, momentum=0.9)
        self.shards = edl.elastic_shard_generator(SAMPLES, epochs=1, shuffle=True)

        def sample(number: Any) -> tuple[Any, Any]:
            row = tf.repeat(tf.cast(number % 7, tf.float32)[:, None], FEATURES, axis=1)
            return row, tf.zeros((tf.shape(number)[0], 1))

        self.dataset = edl.elastic_dataset(self.shards, BATCH).map(sample)


def train_tensorflow(folder: Path) -> None:
    import tensorflow as tf

    task = TensorFlowTask(folder)
    optimizer = task.edl.Optimizer(task.optimizer, model=task.model)

    @tf.function
    def step(inputs: Any, targets: Any) -> None:
        variables = task.model.trainable_variables
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(task.model(inputs, training=True) - targets))
        gradients = tape.gradient(loss, [variable.value for variable in variables])
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    for inputs, targets in task.shards.in_step(task.dataset):
        task.notes.step()
        with task.edl.voidable():
            step(inputs, targets)
        task.edl.notify_batch_end()


def train_keras(folder: Path) -> None:
    import keras

    task = TensorFlowTask(folder)
    notes = task.notes

    class Noting(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002 - Keras's signature
            notes.step()

    task.model.compile(optimizer=task.optimizer, loss="mse")
    task.model.fit(task.dataset, epochs=1, callbacks=[Noting(), task.edl.KerasCallback()], verbose=0)


TRAININGS: dict[str, Callable[[Path], None]] = {
    "torch": train_torch,
    "lightning": train_lightning,
    "trainer": train_trainer,
    "accelerate": train_accelerate,
    "tensorflow": train_tensorflow,
    "keras": train_keras,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=TRAININGS)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    TRAININGS[options.way](options.folder)


if __name__ == "__main__":
    main()
