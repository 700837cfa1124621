"""A script of torchrun's with much of what scripts have: each rank writes down its losses, and what all have measured.

torchrun --standalone --nproc-per-node 2 torchrun_losses.py FOLDER [BATCHES OF AN UPDATE]
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import init_process_group
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

torch.manual_seed(0)
init_process_group(backend="gloo")
rank = int(os.environ["RANK"])
generator = torch.Generator().manual_seed(1)
samples = torch.randn(600, 12, generator=generator)
labels = (samples[:, :4].sum(1) > 0).long()
train, test = TensorDataset(samples[:480], labels[:480]), TensorDataset(samples[480:], labels[480:])
loader = DataLoader(train, batch_size=16, sampler=DistributedSampler(train, seed=5))
testing = DataLoader(test, batch_size=20, sampler=DistributedSampler(test, shuffle=False))
net = torch.nn.Sequential(torch.nn.Linear(12, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 2))
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, epochs=3, steps_per_epoch=len(loader))
accumulate = int(sys.argv[2]) if len(sys.argv) > 2 else 1
losses: list[float] = []
measured: list[Any] = []
for epoch in range(3):
    loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
    model.train()
    for number, (batch, targets) in enumerate(loader):
        loss = torch.nn.functional.cross_entropy(model(batch), targets)
        (loss / accumulate).backward()
        if (number + 1) % accumulate == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        if number % 5 == 0:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            measured.append(mean.item() / dist.get_world_size())
        losses.append(loss.item())
    model.eval()
    right = torch.zeros(2)
    with torch.no_grad():
        for batch, targets in testing:
            right += torch.tensor([(model(batch).argmax(1) == targets).sum(), len(targets)])
    dist.all_reduce(right)
    measured.append(right.tolist())
    dist.barrier()
Path(sys.argv[1], f"{rank}.json").write_text(json.dumps({"losses": losses, "measured": measured}))
dist.destroy_process_group()
