"""One worker of tests/soaks/exactly_once.py: a small model on samples that come through a pipeline that reads ahead."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import time
from pathlib import Path
from typing import Any

EPOCHS, BATCH, AHEAD = 3, 16, 3


def number_of(record: Any) -> int:
    """The sample that a record stands for."""
    return int(record["sample"] if isinstance(record, dict) else record)


class TorchTask:
    def __init__(self, edl: Any, data: str) -> None:
        import torch

        torch.set_num_threads(1)
        self._torch = torch
        self._model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        self._optimizer = edl.Optimizer(torch.optim.SGD(self._model.parameters(), lr=0.01), model=self._model)
        dataset = range(int(data)) if data.isdecimal() else edl.ElasticDataset(data)
        loader = edl.ElasticDataLoader(dataset, BATCH, True, epochs=EPOCHS, num_workers=2, collate_fn=list)
        self.shards, self.batches = loader.shards, loader

    def train(self, batch: list[Any]) -> None:
        rows = self._torch.tensor([[number_of(record) % 7.0] * 8 for record in batch])
        self._optimizer.zero_grad()
        self._model(rows).square().mean().backward()
        self._optimizer.step()


class TensorFlowTask:
    def __init__(self, edl: Any, data: str) -> None:
        import keras
        import tensorflow as tf

        self._tf = tf
        self._model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
        self._optimizer = edl.Optimizer(keras.optimizers.SGD(0.01), model=self._model)
        self.shards = edl.elastic_shard_generator(int(data) if data.isdecimal() else data, EPOCHS, True)
        self.batches = self.shards.in_step(edl.elastic_dataset(self.shards, BATCH).map(self._numbers).prefetch(AHEAD))

    def _numbers(self, batch: Any) -> Any:
        tf = self._tf
        numbers = batch["sample"] if isinstance(batch, dict) else batch
        return tf.strings.to_number(numbers, tf.int64) if numbers.dtype == tf.string else numbers

    def train(self, batch: Any) -> None:
        tf = self._tf
        rows = tf.repeat(tf.cast(batch % 7, tf.float32)[:, None], 8, axis=1)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self._model(rows)))
        weights = self._model.trainable_variables
        gradients = tape.gradient(loss, weights)
        self._optimizer.apply_gradients(zip(gradients, weights, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("framework", choices=["torch", "tensorflow"])
    parser.add_argument("data", help="a number of samples, or a file")
    parser.add_argument("died", type=Path, help="to be made by the one that is killed in the very last step")
    parser.add_argument("pace_s", type=float)
    options = parser.parse_args()
    edl: Any = importlib.import_module(f"edl.{options.framework}")
    edl.init()
    task: Any = {"torch": TorchTask, "tensorflow": TensorFlowTask}[options.framework](edl, options.data)
    for batch in task.batches:
        task.train(batch)
        time.sleep(options.pace_s)
        if edl.epoch() == EPOCHS - 1 and edl.rank() == 0 and edl.size() > 1 and not edl.rehearsing():
            die_if_last(task.shards, edl.step(), options.died)
        edl.notify_batch_end()


def die_if_last(shards: Any, step: int, died: Path) -> None:
    """The step after which nothing is left of all epochs: its update is applied, and no daemon was told."""
    if shards._port.leases.ends_before(step + 1) and not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
