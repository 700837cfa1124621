"""For `edl torchrun`: a script that counts by hand, calls a collective by that, and keeps an average of its weights."""

import copy
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Progress:
    def __init__(self):
        self.steps, self.met = 0, {"met": 0}

    def made(self):
        self.steps += 1


def logged(batches):
    yield from batches


def main(hurry):
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    data = TensorDataset(torch.arange(480.0).reshape(240, 2) / 480)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, 4, sampler=sampler)
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    average = copy.deepcopy(model.module)
    length = 8 * len(loader)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rank, own, steps, progress = dist.get_rank(), 0, 0, Progress()
    for epoch in range(8):
        sampler.set_epoch(epoch)
        for number, (values,) in enumerate(logged(loader)):
            optimizer.param_groups[0]["lr"] = 0.1 * (1 - (epoch * 30 + number) / length)
            optimizer.zero_grad()
            model(values).pow(2).mean().backward()
            optimizer.step()
            for mine, one in zip(average.parameters(), model.module.parameters(), strict=True):
                mine.data.mul_(0.9).add_(one.detach(), alpha=0.1)
            own += rank
            steps += 1
            progress.made()
            if progress.steps % 5 == 0:
                dist.all_reduce(torch.ones(1))
                progress.met["met"] += 1
            if not hurry.exists():
                time.sleep(0.1 if epoch < 4 else 1.0)  # a newcomer may take long to boot
    found = [round(one.item(), 6) for parameter in average.parameters() for one in parameter.flatten()]
    sys.stdout.write(f"rank {rank} has {own} of {rank * steps}\n")
    sys.stdout.write(f"ends with {steps} {progress.steps} {progress.met} {found}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(os.environ["EDL_TEST_HURRY"]))
