"""One worker of benchmarks/recovery.py: a small model trains until it is told to stop, and notes each step it has made.

`edl` is an elastic script of ours, `horovod` the same with Horovod's own elastic mode, `torchrun` with PyTorch's: a
process group of gloo, DistributedDataParallel, and a checkpoint to which all go back.
"""

from __future__ import annotations

import argparse
import importlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.pause_worker import (
    BATCH,
    SAMPLES,
    STEP_S,
    TASKS,
    TensorFlowTask,
    TorchTask,
    Voidable,
    choose_device,
    until,
)

EAGER = "EDL_BENCHMARK_EAGER"


class Eager(TensorFlowTask):
    """As a step must be under Horovod: a `tf.function` raises what its elastic mode does not know."""

    def train(self) -> None:
        self._forward_and_back()


class Notes:
    """Lines for the benchmark, each written whole. All times are of the clock that processes of one machine share."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / f"{os.getpid()}.notes").open("w", buffering=1)

    def step(self, ring_began: float, number: int, rank: int, size: int) -> None:
        """A step is made, trained in the ring that began then."""
        self._file.write(f"step {time.monotonic():.6f} {ring_began:.6f} {number} {rank} {size}\n")

    def void(self) -> None:
        self._file.write(f"void {time.monotonic():.6f}\n")

    def timed(self, owner: type, method: str, name: str) -> None:
        """Note when calls of that method begin and end."""
        call = getattr(owner, method)

        def noted(*arguments: Any, **keywords: Any) -> Any:
            began = time.monotonic()
            try:
                return call(*arguments, **keywords)
            finally:
                self._file.write(f"{name} {began:.6f} {time.monotonic():.6f}\n")

        setattr(owner, method, noted)


def task_of(framework: str, local_rank: int, of_tensorflow: type[TensorFlowTask] = Eager) -> Any:
    return (of_tensorflow if framework == "tensorflow" else TASKS[framework])(0, local_rank)


def run_edl(framework: str, folder: Path, notes: Notes, _: int) -> None:
    edl: Any = importlib.import_module(f"edl.{framework}")
    from edl.trainer.shell import WorkerShell

    notes.timed(WorkerShell, "_enter", "enter")
    notes.timed(WorkerShell, "end_uncommitted_batch", "broken")
    notes.timed(WorkerShell, "_agree", "state")
    notes.timed(WorkerShell, "_copy", "state")  # the last of these calls is when all have the state
    edl.init()
    task = task_of(framework, edl.local_rank(), Eager if os.environ.get(EAGER) else Voidable)
    task.use_edl(edl)
    generation, began = -1, 0.0
    for _batch in edl.elastic_shard_generator(SAMPLES, epochs=1000).batches(BATCH):
        if edl.generation() != generation:
            generation, began = edl.generation(), time.monotonic()
        ring = (edl.rank(), edl.size())
        time.sleep(STEP_S)
        task.train()
        rehearsing = edl.rehearsing()
        if edl.notify_batch_end():
            notes.step(began, edl.step() - 1, *ring)
        elif not rehearsing:
            notes.void()
        if edl.step() > until(folder, "stop"):
            break


def run_horovod(framework: str, _: Path, notes: Notes, commit_every: int) -> None:
    if framework == "torch":
        import horovod.torch as hvd
    else:
        import horovod.tensorflow as hvd
    hvd.init()
    task = task_of(framework, hvd.local_rank())
    state = task.use_horovod()

    @hvd.elastic.run
    def loop(state: Any) -> None:
        began = time.monotonic()
        while True:
            time.sleep(STEP_S)
            task.train()
            state.batch += 1
            notes.step(began, state.batch, hvd.rank(), hvd.size())
            if state.batch % commit_every == 0:
                state.commit()

    loop(state)


def run_torchrun(_: str, folder: Path, notes: Notes, commit_every: int) -> None:
    import torch

    torch.distributed.init_process_group("gloo")
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    task: Any = TorchTask(0)
    step, checkpoint = 0, folder / "checkpoint"
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        task.model.load_state_dict(saved["model"])
        task.optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    model = task.model
    task.model = torch.nn.parallel.DistributedDataParallel(model)
    began = time.monotonic()
    while True:
        time.sleep(STEP_S)
        task.train()
        step += 1
        notes.step(began, step, rank, size)
        if step % commit_every == 0 and rank == 0:
            working = folder / "checkpoint.new"
            torch.save({"model": model.state_dict(), "optimizer": task.optimizer.state_dict(), "step": step}, working)
            working.rename(checkpoint)


RUN: dict[str, Callable[[str, Path, Notes, int], None]] = {
    "edl": run_edl,
    "horovod": run_horovod,
    "torchrun": run_torchrun,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=sorted(RUN))
    parser.add_argument("framework", choices=sorted(TASKS))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--commit-every", type=int, default=10)
    options = parser.parse_args()
    os.environ["TF_NUM_INTRAOP_THREADS"] = "1"
    choose_device()
    RUN[options.mode](options.framework, options.folder, Notes(options.folder), options.commit_every)


if __name__ == "__main__":
    main()
