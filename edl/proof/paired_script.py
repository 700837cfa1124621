"""A script of DistributedDataParallel for `edl.proof.paired_turns`: it trains some steps each time it is told to.

`torchrun` and `edl torchrun` run the same file; nothing in it knows edl's API.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from edl.proof.turn_notes import TurnNotes


def main() -> None:
    width, layers, samples, turns, steps = map(int, sys.argv[1:6])
    folder, kind, on_gpu = Path(sys.argv[6]), sys.argv[7], sys.argv[8] == "cuda"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    dist.init_process_group("nccl" if on_gpu else "gloo")
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(dist.get_world_size() * samples * turns * steps, width))
    sampler: DistributedSampler[Any] = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=samples, sampler=sampler)
    hidden = [layer for _ in range(layers) for layer in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    model = DistributedDataParallel(torch.nn.Sequential(*hidden, torch.nn.Linear(width, 1)).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    notes = TurnNotes(folder, kind, steps)
    for number, (inputs,) in enumerate(loader):
        notes.begin(number)
        optimizer.zero_grad()
        model(inputs.to(device)).pow(2).mean().backward()
        optimizer.step()
        if on_gpu:
            torch.cuda.synchronize()
        notes.end(number, dist.get_rank())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
