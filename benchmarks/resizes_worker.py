"""One worker of benchmarks/resizes.py: digits are learnt; after a ring's first step the weights' digest is noted."""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pause_worker import choose_device, torch_device

DIGITS = Path(__file__).resolve().parents[1] / "data" / "digits" / "digits.csv.gz"
GLOBAL_LR, BATCH = 0.05, 16


def digits() -> tuple[np.ndarray, np.ndarray]:
    table = np.loadtxt(DIGITS, delimiter=",", dtype=np.float32)
    return table[:, :64] / 16, table[:, 64].astype(np.int64)


class TorchTask:
    def __init__(self, edl: Any) -> None:
        import torch

        torch.set_num_threads(1)
        torch.manual_seed(0)
        self._torch = torch
        device = torch_device(edl.local_rank())
        self._images, self._labels = (torch.from_numpy(array).to(device) for array in digits())
        self._model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)).to(device)
        optimizer = torch.optim.SGD(self._model.parameters(), lr=GLOBAL_LR, momentum=0.9)
        self._optimizer = edl.Optimizer(optimizer, model=self._model)

    def train(self, ids: np.ndarray) -> None:
        self._optimizer.zero_grad()
        self._torch.nn.functional.cross_entropy(self._model(self._images[ids]), self._labels[ids]).backward()
        self._optimizer.step()

    def weights(self) -> list[np.ndarray]:
        slots = [slot["momentum_buffer"] for slot in self._optimizer.state.values()]
        return [tensor.detach().cpu().numpy() for tensor in (*self._model.parameters(), *slots)]

    def loss(self) -> float:
        with self._torch.no_grad():
            return float(self._torch.nn.functional.cross_entropy(self._model(self._images), self._labels))


class TensorFlowTask:
    def __init__(self, edl: Any) -> None:
        import keras
        import tensorflow as tf

        keras.utils.set_random_seed(0)
        self._edl = edl
        images, labels = digits()
        self._images, self._labels = tf.constant(images), tf.constant(labels)
        layers = [keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
        self._model = keras.Sequential([keras.Input((64,)), *layers])
        self._loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self._optimizer = edl.Optimizer(keras.optimizers.SGD(GLOBAL_LR, momentum=0.9), model=self._model)
        self._step = tf.function(self._forward_and_back, input_signature=[tf.TensorSpec([None], tf.int64)])

    def _forward_and_back(self, ids: Any) -> None:
        import tensorflow as tf

        variables = self._model.trainable_variables
        with tf.GradientTape() as tape:
            loss = self._loss(tf.gather(self._labels, ids), self._model(tf.gather(self._images, ids), training=True))
        gradients = tape.gradient(loss, [variable.value for variable in variables])
        self._optimizer.apply_gradients(zip(gradients, variables, strict=True))

    def train(self, ids: np.ndarray) -> None:
        import tensorflow as tf

        with self._edl.voidable():
            self._step(tf.constant(ids))

    def weights(self) -> list[np.ndarray]:
        return [np.asarray(variable) for variable in (*self._model.variables, *self._optimizer.variables)]

    def loss(self) -> float:
        return float(self._loss(self._labels, self._model(self._images)))


def digest(arrays: list[np.ndarray]) -> str:
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("framework", choices=["torch", "tensorflow"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--step-time", type=float, default=0.02)
    parser.add_argument("--epochs", type=int, help="asked for at once (default: one after the other)")
    parser.add_argument("--note-steps", action="store_true", help="when each of them ended")
    options = parser.parse_args()
    os.environ["TF_NUM_INTRAOP_THREADS"] = "1"
    choose_device()
    edl: Any = importlib.import_module(f"edl.{options.framework}")
    edl.init()
    task: Any = {"torch": TorchTask, "tensorflow": TensorFlowTask}[options.framework](edl)
    until, stop = options.folder / "epochs", options.folder / "stop"
    notes = (options.folder / f"{os.getpid()}.jsonl").open("w", buffering=1)

    def note(kind: str, **values: Any) -> None:
        notes.write(json.dumps({"kind": kind, "generation": edl.generation(), "step": edl.step() - 1, **values}) + "\n")

    ring = edl.generation()
    shards = edl.elastic_shard_generator(1797, epochs=options.epochs, shuffle=True)
    wanted, first_in_ring = 2**31, True
    while shards.epochs_done < wanted:
        for ids in shards.batches(BATCH):
            if stop.exists() and edl.step() > int(stop.read_text()):  # the same step for all
                wanted = 0
                break
            task.train(ids)
            time.sleep(options.step_time)
            edl.notify_batch_end()
            if options.note_steps:
                note("step", at=time.monotonic())
            enters, ring = edl.generation() != ring, edl.generation()
            if first_in_ring and not enters:  # a newcomer's state may come beside that step
                note("switch", size=edl.size(), digest=digest(task.weights()))
            first_in_ring = enters
        if edl.rank() == 0:
            note("epoch", samples=1797 * shards.epochs_done)
        wanted = int(until.read_text()) if until.exists() else wanted
    note("end", digest=digest(task.weights()), loss=task.loss())


if __name__ == "__main__":
    main()
