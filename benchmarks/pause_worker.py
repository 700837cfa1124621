"""One worker of benchmarks/pause.py: a small torch model trains until it is told to stop, and notes each step's end.

`edl` mode is an elastic script of ours, `stock` the same with `horovod.torch.elastic`.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

STEP_S = 0.02  # what a step takes at least: the rest of a step of a real model
SAMPLES, FEATURES, BATCH = 100_000, 64, 8


def build() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(FEATURES, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)


def train(model: torch.nn.Module, optimizer: Any) -> None:
    time.sleep(STEP_S)
    optimizer.zero_grad()
    model(torch.ones(BATCH, FEATURES)).square().mean().backward()
    optimizer.step()


def run_edl(stop: Path, note: Any) -> None:
    import edl.torch as edl

    edl.init()
    model, optimizer = build()
    optimizer = edl.Optimizer(optimizer, model=model)
    for _ in edl.elastic_shard_generator(SAMPLES, epochs=1000).batches(BATCH):
        train(model, optimizer)
        rehearsing = edl.rehearsing()
        edl.notify_batch_end()
        if not rehearsing:
            note(edl.size())
        if stop.exists():
            break


def run_stock(stop: Path, note: Any) -> None:
    import horovod.torch as hvd

    hvd.init()
    model, optimizer = build()
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, batch=0)

    @hvd.elastic.run
    def loop(state: Any) -> None:
        while not stop.exists():
            train(model, optimizer)
            state.batch += 1
            note(hvd.size())
            if state.batch % 10 == 0:  # as Horovod's own elastic examples do
                state.commit()

    loop(state)


def main() -> None:
    mode, folder = sys.argv[1], Path(sys.argv[2])
    with (folder / f"{mode}-{os.getpid()}.steps").open("w", buffering=1) as steps:
        run = {"edl": run_edl, "stock": run_stock}[mode]
        run(folder / "stop", lambda size: steps.write(f"{time.time():.6f} {size}\n"))
    os._exit(0)  # the measurement is over: no orderly end is needed


if __name__ == "__main__":
    main()
