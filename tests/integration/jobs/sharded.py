"""Trains a model that FSDP2 shards over the processes of each worker, or whole in one, and tells what became of it."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import edl.torch as edl
from edl.torch import torch_framework, within_worker


class MeetsSlowly(within_worker.GroupWorld):
    """The first process is ready after the others, as on a busy machine: it may have heard its first orders by then."""

    def __init__(self, limb: int, processes: int, folder: Path, step_timeout_s: float) -> None:
        super().__init__(limb, processes, folder, step_timeout_s)
        if not limb:
            time.sleep(0.5)


torch_framework.GroupWorld = MeetsSlowly  # type: ignore[attr-defined]
parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--steps", type=int, default=1_000_000)
parser.add_argument("--pace", type=Path, help="file with the seconds that a step takes at least")
parser.add_argument(
    "--way", default="rows", choices=["rows", "tensor", "both", "copies", "stages"], help="how it is divided"
)
parser.add_argument("--stop", type=Path, help="file that ends the training")
parser.add_argument("--wait", type=Path, help="while this file is there, a mini-batch does not begin")
parser.add_argument("--samples", type=int, default=4004, help="in an epoch; 12 are one step, at any number of workers")
parser.add_argument("--trace", action="store_true", help="tell the weights after each step, of a model in one process")
parser.add_argument("--unlike", action="store_true", help="each process builds another model")
options = parser.parse_args()

SAMPLES = options.samples
WIDTH = 33 if options.way == "rows" else 32
torch.manual_seed(5 + options.unlike * int(os.environ.get("EDL_LIMB", "0")))
drawn = torch.Generator().manual_seed(1)
inputs = torch.randn(SAMPLES, 16, generator=drawn)
targets = torch.randint(3, (SAMPLES,), generator=drawn)
model = nn.Sequential(nn.Linear(16, WIDTH), nn.GELU(), nn.Linear(WIDTH, 3))

edl.init()
mesh: Any = None  # of processes that have different samples
processes = edl.group_size()
if processes > 1 and options.way in {"rows", "copies"}:
    mesh = init_device_mesh("cpu", (processes,), mesh_dim_names=("shard",))
elif processes > 1 and options.way in {"tensor", "both"}:
    two = init_device_mesh("cpu", (processes // 2, 2), mesh_dim_names=("shard", "tensor"))
    parallelize_module(model, two["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    mesh = two["shard"]
if processes > 1 and options.way in {"rows", "both"}:
    for part in (model[0], model[2], model):
        fully_shard(part, mesh=mesh)
schedule: Any = None
if processes > 1 and options.way == "stages":
    number = edl.group_rank()
    model = nn.Sequential(*([model[0], model[1]], [model[2]])[number])
    stage = PipelineStage(model, number, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=nn.functional.cross_entropy)
optimizer = edl.Optimizer(torch.optim.AdamW(model.parameters(), lr=3e-3), model=model)
average = [one.detach().clone() for one in model.parameters()]
edl.register(average=average)
shards = edl.elastic_shard_generator(SAMPLES, epochs=None, shuffle=True, among=mesh)
trace: dict[int, list[list[float]]] = {}
step, over = 0, False
while not over:
    for ids in shards.batches(12):
        while options.wait and options.wait.exists():
            time.sleep(0.05)
        began = time.monotonic()
        optimizer.zero_grad()
        if schedule is None:
            loss = nn.functional.cross_entropy(model(inputs[ids]), targets[ids]) * edl.part_weight()
            loss.backward()
        elif edl.group_rank():
            schedule.step(target=targets[ids])
        else:
            schedule.step(inputs[ids])
        if options.way != "stages":  # a norm over the stages would have to be made by hand
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if options.pace:
            time.sleep(max(0.0, float(options.pace.read_text()) - time.monotonic() + began))
        for kept, one in zip(average, model.parameters(), strict=True):
            kept.lerp_(one.detach(), 0.1)
        edl.notify_batch_end()
        resumed = edl.resumed()
        step = edl.step() - 1 + (0 if resumed is None else resumed.step)  # of all lives
        if options.trace:
            trace[step] = [one.detach().flatten().tolist() for one in model.parameters()]
        over = step >= options.steps
        if over:
            break
    over = over or bool(options.stop and options.stop.exists())

parameters: list[Any] = list(model.parameters())
whole = [one.full_tensor() if isinstance(one, DTensor) else one for one in parameters]
averages: list[Any] = [one.full_tensor() if isinstance(one, DTensor) else one for one in average]
mine = [one.to_local() if isinstance(one, DTensor) else one for one in parameters]
moments = [state["exp_avg"] for state in optimizer.state.values()]
found = {
    "step": step,
    "whole": [one.detach().flatten().tolist() for one in whole],
    "averages": [one.flatten().tolist() for one in averages],
    "shards": [one.detach().flatten().tolist() for one in mine],
    "trace": trace,
    "bytes": sum(one.numel() for one in mine) + sum(getattr(one, "_local_tensor", one).numel() for one in moments),
}
(options.out / f"end.{edl.rank()}.{edl.group_rank()}.json").write_text(json.dumps(found))
