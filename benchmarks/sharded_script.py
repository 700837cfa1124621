"""A script for `benchmarks.sharded`: replicas of two processes each, over which FSDP2 shards one model.

What joins the replicas is a mesh of FSDP2's own (`hsdp`), edl, or torchft, as its authors join it to FSDP2: a hook
that averages what a reduce-scatter has left. With a number of turns it trains some steps each time it is told to;
with none it trains until it is ended, and notes each step.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

import edl.torch as edl
from edl.proof.turn_notes import TurnNotes

SAMPLES = 100_000
PROCESSES = 2  # of a replica
PACE = "pace"  # a file with the seconds that a step takes at least, where no turns are taken
TIMEOUT_S = 20.0  # of torchft's collectives and votes

Step = Callable[[torch.Tensor], tuple[int, bool]]  # returns the number of the step, and whether it counts


def sharded(width: int, layers: int, mesh: DeviceMesh) -> Any:
    torch.manual_seed(0)
    hidden = [layer for _ in range(layers) for layer in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    model = torch.nn.Sequential(*hidden, torch.nn.Linear(width, 1))
    for part in model:
        if isinstance(part, torch.nn.Linear):
            fully_shard(part, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def loss_of(model: torch.nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(inputs).pow(2).mean()
    return loss


def drawn(samples: int) -> Iterator[list[int]]:
    """Yield the samples of this process, as a sampler would."""
    drawn = torch.Generator().manual_seed(dist.get_rank())
    while True:
        yield torch.randint(SAMPLES, (samples,), generator=drawn).tolist()


def by_mesh(width: int, layers: int, samples: int) -> tuple[str, Iterable[Any], Step]:
    dist.init_process_group("gloo")
    replicas = dist.get_world_size() // PROCESSES
    mesh = init_device_mesh("cpu", (replicas, PROCESSES), mesh_dim_names=("replicate", "shard"))
    model = sharded(width, layers, mesh)
    optimizer, made = sgd(model), 0

    def step(inputs: torch.Tensor) -> tuple[int, bool]:
        nonlocal made
        optimizer.zero_grad()
        loss_of(model, inputs).backward()
        optimizer.step()
        made += 1
        return made, True

    return str(dist.get_rank()), drawn(samples), step


def by_edl(width: int, layers: int, samples: int) -> tuple[str, Iterable[Any], Step]:
    edl.init()
    mesh = init_device_mesh("cpu", (edl.group_size(),), mesh_dim_names=("shard",))
    model = sharded(width, layers, mesh)
    optimizer = edl.Optimizer(sgd(model), model=model)
    shards = edl.elastic_shard_generator(SAMPLES, epochs=1000, shuffle=True, among=mesh)

    def step(inputs: torch.Tensor) -> tuple[int, bool]:
        optimizer.zero_grad()
        (loss_of(model, inputs) * edl.part_weight()).backward()
        optimizer.step()
        counts = edl.notify_batch_end()
        return edl.step(), counts

    return str(edl.rank() * PROCESSES + edl.group_rank()), shards.batches(samples * PROCESSES), step


def by_torchft(width: int, layers: int, samples: int) -> tuple[str, Iterable[Any], Step]:
    from torchft import Manager, ProcessGroupGloo  # type: ignore[import-not-found] # an optional peer
    from torchft.optim import OptimizerWrapper  # type: ignore[import-not-found] # an optional peer

    dist.init_process_group("gloo")
    replica = os.environ["REPLICA_GROUP_ID"]
    model = sharded(width, layers, init_device_mesh("cpu", (PROCESSES,), mesh_dim_names=("shard",)))
    bare = sgd(model)

    def load(state: Any) -> None:
        model.load_state_dict(state["model"])
        bare.load_state_dict(state["optimizer"])

    timeout = timedelta(seconds=TIMEOUT_S)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timeout),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": bare.state_dict()},
        min_replica_size=1,
        timeout=timeout,
        quorum_timeout=timeout,
        replica_id=replica,
        init_sync=False,
    )
    for part in model.modules():
        if hasattr(part, "set_all_reduce_hook"):
            part.set_all_reduce_hook(lambda gradient: manager.allreduce(gradient).wait())
    optimizer = OptimizerWrapper(manager, bare)

    def step(inputs: torch.Tensor) -> tuple[int, bool]:
        before = manager.current_step()
        optimizer.zero_grad()
        loss_of(model, inputs).backward()
        optimizer.step()
        return manager.current_step(), manager.current_step() > before

    return str(int(replica) * PROCESSES + dist.get_rank()), drawn(samples), step


WAYS = {"hsdp": by_mesh, "edl": by_edl, "torchft": by_torchft}


def main() -> None:
    width, layers, samples, turns, steps = map(int, sys.argv[1:6])
    folder, kind = Path(sys.argv[6]), sys.argv[7]
    torch.set_num_threads(1)
    place, batches, step = WAYS[kind](width, layers, samples)
    inputs = torch.randn(SAMPLES // 100, width)
    if turns:
        notes = TurnNotes(folder, kind, steps)
        for number, ids in zip(range(turns * steps), batches, strict=False):
            notes.begin(number)
            step(inputs[torch.tensor(ids) % len(inputs)])
            notes.end(number, int(place))
        return
    pace_s = float((folder / PACE).read_text())
    with (folder / f"steps {kind} {place} {os.getpid()}").open("w", buffering=1) as told:
        for ids in batches:
            began = time.monotonic()
            number, counts = step(inputs[torch.tensor(ids) % len(inputs)])
            time.sleep(max(0.0, began + pace_s - time.monotonic()))
            told.write(f"{time.monotonic()} {number} {int(counts)}\n")


if __name__ == "__main__":
    main()
