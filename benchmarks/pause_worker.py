"""One worker of benchmarks/pause.py: a small model trains until it is told to stop, and notes the end of each step.

`edl` is an elastic script of ours, `stock` the same with Horovod's own elastic mode; both in PyTorch and TensorFlow.
"""

from __future__ import annotations

import argparse
import importlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

STEP_S = 0.02  # what a step takes at least: the rest of a step of a real model
SAMPLES, FEATURES, BATCH = 100_000, 64, 8
LAYER_BYTES = 1 << 22
COMMIT_EVERY = 10  # steps, as in Horovod's own elastic examples
BROADCASTS = 5
DEVICE, APART = "EDL_BENCHMARK_DEVICE", "EDL_BENCHMARK_APART"  # handed down to workers


def choose_device() -> None:
    """NCCL takes no GPU twice. With --apart workers count as those of other hosts, so that some can share one."""
    if os.environ.get(APART):
        os.environ["NCCL_HOSTID"] = f"host-{os.getpid()}"
    if os.environ.get(DEVICE) != "cuda":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


class Notes:
    """Lines for the benchmark, each written whole."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / f"{os.getpid()}.steps").open("w", buffering=1)

    def step(self, size: int) -> None:
        self._file.write(f"step {time.time():.6f} {size}\n")

    def entered(self, began: float, size: int) -> None:
        self._file.write(f"enter {began:.6f} {time.time():.6f} {size}\n")

    def prepared(self, began: float, size: int) -> None:
        self._file.write(f"prepare {began:.6f} {time.time():.6f} {size}\n")

    def broadcast(self, seconds: float) -> None:
        self._file.write(f"broadcast {seconds:.6f}\n")


def torch_device(local_rank: int) -> Any:
    """Where the model of this worker is to lie."""
    import torch

    if os.environ.get(DEVICE) != "cuda":
        return torch.device("cpu")
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


class TorchTask:
    """Two layers, and ballast: state that is moved to newcomers and costs a step nothing, as so many large layers."""

    def __init__(self, ballast_bytes: int, local_rank: int = 0) -> None:
        import torch

        device = torch_device(local_rank)
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(FEATURES, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
        layers = [torch.zeros(min(LAYER_BYTES, ballast_bytes - at) // 4) for at in range(0, ballast_bytes, LAYER_BYTES)]
        self.model[0].ballast = torch.nn.ParameterList(torch.nn.Parameter(one, requires_grad=False) for one in layers)
        self.model.to(device)
        self.optimizer: Any = torch.optim.SGD(self.model.parameters(), lr=0.001, momentum=0.9)
        self._inputs = torch.ones(BATCH, FEATURES, device=device)

    def use_edl(self, edl: Any) -> None:
        self.optimizer = edl.Optimizer(self.optimizer, model=self.model)

    def use_horovod(self) -> Any:
        import horovod.torch as hvd

        named = self.model.named_parameters()
        self.optimizer = hvd.DistributedOptimizer(self.optimizer, named_parameters=named)
        return hvd.elastic.TorchState(model=self.model, optimizer=self.optimizer, batch=0)

    def train(self) -> None:
        self.optimizer.zero_grad()
        self.model(self._inputs).square().mean().backward()
        self.optimizer.step()

    def broadcast(self, count: int) -> None:
        import torch

        hvd: Any = importlib.import_module("edl.torch")  # of the ring that it has
        ballast = torch.zeros(count // 4, device=self._inputs.device)
        hvd.broadcast_(ballast, 0, name="ballast")
        if ballast.is_cuda:
            torch.cuda.synchronize()


class AsKeras2:
    """What Horovod's state for Keras asks of a model (attributes) and of an optimizer (`variables()`)."""

    built = True

    def __init__(self, variables: list[Any]) -> None:
        self.variables = Called(variable.value for variable in variables)


class Called(list[Any]):
    def __call__(self) -> list[Any]:
        return self


class TensorFlowTask:
    """The same; a step is a tf.function."""

    def __init__(self, ballast_bytes: int, _local_rank: int = 0) -> None:
        import keras
        import tensorflow as tf

        keras.utils.set_random_seed(0)

        class Ballast(keras.layers.Layer):  # type: ignore[misc]
            """The optimizer has as much for it again."""

            def build(self, _: Any) -> None:
                half = ballast_bytes // 2
                for at in range(0, half, LAYER_BYTES):
                    self.add_weight(shape=(min(LAYER_BYTES, half - at) // 4,), name=f"ballast_{at}")

            def call(self, inputs: Any) -> Any:
                return inputs

        layers = [keras.layers.Dense(256, "relu"), keras.layers.Dense(1)]
        self.model = keras.Sequential([keras.Input((FEATURES,)), Ballast(), *layers])
        self.optimizer: Any = keras.optimizers.SGD(0.001, momentum=0.9)
        if ballast_bytes:  # else with the first update, as in most scripts
            self.optimizer.build(self.model.trainable_variables)
        self._inputs = tf.ones((BATCH, FEATURES))
        self._reduced: Callable[[Any], Any] = lambda tape: tape
        self._step = tf.function(self._forward_and_back)

    def use_edl(self, edl: Any) -> None:
        self.optimizer = edl.Optimizer(self.optimizer, model=self.model)

    def use_horovod(self) -> Any:
        import horovod.tensorflow as hvd

        self._reduced = hvd.DistributedGradientTape
        self.optimizer.build(self.model.trainable_variables)  # its state is asked for before
        model, optimizer = AsKeras2(self.model.variables), AsKeras2(self.optimizer.variables)
        return hvd.elastic.TensorFlowKerasState(model, optimizer, batch=0)

    def train(self) -> None:
        self._step()

    def _forward_and_back(self) -> None:
        import tensorflow as tf

        variables = [one for layer in self.model.layers[1:] for one in layer.trainable_variables]  # without the ballast
        with self._reduced(tf.GradientTape()) as tape:
            loss = tf.reduce_mean(tf.square(self.model(self._inputs, training=True)))
        gradients = tape.gradient(loss, [variable.value for variable in variables])
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))

    def broadcast(self, count: int) -> None:
        import horovod.tensorflow as hvd
        import tensorflow as tf

        hvd.broadcast(tf.zeros(count // 4), 0, name="ballast").numpy()


class Voidable(TensorFlowTask):
    """A `tf.function`, of which edl makes a void mini-batch when the ring breaks."""

    def train(self) -> None:
        import edl.tensorflow as edl

        with edl.voidable():
            self._step()


TASKS: dict[str, type[TorchTask | TensorFlowTask]] = {"torch": TorchTask, "tensorflow": TensorFlowTask}


def run_edl(framework: str, ballast_bytes: int, step_s: float, folder: Path, notes: Notes) -> None:
    edl: Any = importlib.import_module(f"edl.{framework}")
    note_entering(notes)
    edl.init()
    task = (Voidable if framework == "tensorflow" else TorchTask)(ballast_bytes, edl.local_rank())
    task.use_edl(edl)
    for _ in edl.elastic_shard_generator(SAMPLES, epochs=1000).batches(BATCH):
        time.sleep(step_s)
        task.train()
        if edl.notify_batch_end():
            notes.step(edl.size())
        if until(folder, "broadcast") == edl.step():
            for _ in range(BROADCASTS):
                began = time.perf_counter()
                task.broadcast(ballast_bytes)
                notes.broadcast(time.perf_counter() - began)
        if edl.step() >= until(folder, "stop"):
            break


def until(folder: Path, name: str) -> int:
    """The step that the benchmark has set for something; never, as long as it has not."""
    path = folder / name
    return int(path.read_text()) if path.exists() else 2**63


def note_entering(notes: Notes) -> None:
    """When each worker comes to its next ring, and when it sits there; and how long that took to prepare beside."""
    from edl.core.worker.inputs import AdoptRing, EnterRing, Input
    from edl.protocol.ring import Place
    from edl.trainer.preparer import Preparer
    from edl.trainer.shell import WorkerShell

    enter, prepare = WorkerShell._enter, Preparer._form

    def noted(self: WorkerShell, command: EnterRing | AdoptRing) -> Input:
        began = time.time()
        answer = enter(self, command)
        notes.entered(began, command.assignment.place.size)
        return answer

    def prepared(self: Preparer, place: Place, timeout_s: float, *, all_prepare: bool) -> None:
        began = time.time()
        prepare(self, place, timeout_s, all_prepare=all_prepare)
        notes.prepared(began, place.size)

    WorkerShell._enter = noted  # type: ignore[method-assign]
    Preparer._form = prepared  # type: ignore[method-assign]


def run_stock(framework: str, ballast_bytes: int, step_s: float, folder: Path, notes: Notes) -> None:
    if framework == "torch":
        import horovod.torch as hvd
    else:
        import horovod.tensorflow as hvd
    hvd.init()
    task = TASKS[framework](ballast_bytes, hvd.local_rank())
    state = task.use_horovod()

    @hvd.elastic.run
    def loop(state: Any) -> None:
        while not (folder / "stop").exists():
            time.sleep(step_s)
            task.train()
            state.batch += 1
            notes.step(hvd.size())
            if state.batch % COMMIT_EVERY == 0:
                state.commit()

    loop(state)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=["edl", "stock"])
    parser.add_argument("framework", choices=sorted(TASKS))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ballast-mb", type=int, default=0)
    parser.add_argument("--step-ms", type=float, default=1000 * STEP_S)
    options = parser.parse_args()
    os.environ["TF_NUM_INTRAOP_THREADS"] = "1"
    choose_device()
    run = {"edl": run_edl, "stock": run_stock}[options.mode]
    run(
        options.framework, options.ballast_mb * 1_000_000, options.step_ms / 1000, options.folder, Notes(options.folder)
    )
    if options.mode == "stock":
        os._exit(0)  # the measurement is over: an orderly end would wait for the driver


if __name__ == "__main__":
    main()
