"""Horovod's kind of script for `edl.proof.paired_turns`: under `horovodrun` on plain Horovod, under `edl run` on edl.

Model, batches and steps are equal; what is compared is the optimizer, the samples and the end of a batch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from edl.proof.turn_notes import TurnNotes

PLAIN = "horovodrun"


def plain(model: torch.nn.Module, samples: int, steps: int) -> tuple[Any, Any, Iterator[slice]]:
    """Return Horovod, its optimizer, and the samples of each step."""
    import horovod.torch as hvd

    sgd = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(sgd, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    first = hvd.rank() * samples * steps
    return hvd, optimizer, (slice(first + samples * at, first + samples * (at + 1)) for at in range(steps))


def elastic(model: torch.nn.Module, samples: int, steps: int) -> tuple[Any, Any, Iterator[Any]]:
    """Return edl, its optimizer, and the samples of each step."""
    import edl.torch as edl

    optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9), model=model)
    shards = edl.elastic_shard_generator(edl.size() * samples * steps, epochs=1)
    return edl, optimizer, iter(shards.batches(samples))


def main() -> None:
    width, layers, samples, turns, steps = map(int, sys.argv[1:6])
    folder, kind, on_gpu = Path(sys.argv[6]), sys.argv[7], sys.argv[8] == "cuda"
    if kind == PLAIN:
        import horovod.torch as library
    else:
        import edl.torch as library
    library.init()
    device = torch.device("cuda", library.local_rank()) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    hidden = [layer for _ in range(layers) for layer in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    model = torch.nn.Sequential(*hidden, torch.nn.Linear(width, 1)).to(device)
    make = plain if kind == PLAIN else elastic
    ranks, optimizer, batches = make(model, samples, turns * steps)
    inputs = torch.randn(ranks.size() * samples * turns * steps, width)
    notes = TurnNotes(folder, kind, steps)
    for number, ids in enumerate(batches):
        notes.begin(number)
        optimizer.zero_grad()
        model(inputs[ids].to(device)).pow(2).mean().backward()
        optimizer.step()
        if kind != PLAIN:
            ranks.notify_batch_end()
        if on_gpu:
            torch.cuda.synchronize()
        notes.end(number, ranks.rank())


if __name__ == "__main__":
    main()
