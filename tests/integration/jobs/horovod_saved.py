"""A script of Horovod elastic, in a job that is saved and goes on later: models, optimizer, sampler, scheduler, scaler.

Its loader's process augments samples. Nothing of edl's but the import, and `hvd.elastic.DataLoader`.
"""

import argparse
import json
import os
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import path
import task
import torch
from torch.nn import functional

import edl.torch as hvd

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--step-time", type=float, default=0.03)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--per-commit", type=int, default=1)
options = parser.parse_args()
torch.set_num_threads(1)
options.out.mkdir(parents=True, exist_ok=True)
inputs, targets = torch.from_numpy(task.INPUTS), torch.from_numpy(task.TARGETS)
hvd.init()
torch.manual_seed(hvd.rank())


class Rows(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return task.SAMPLES

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        noise = random.random() + float(np.random.rand()) + float(torch.rand(()))  # noqa: NPY002
        return inputs[number] + 0.1 * noise, targets[number]


model = torch.nn.Sequential(
    torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Dropout(0.2), torch.nn.LayerNorm(8), torch.nn.Linear(8, 1)
)
optimizer: Any = hvd.DistributedOptimizer(
    torch.optim.Adam(model.parameters(), lr=0.01), named_parameters=model.named_parameters()
)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=5)
sampler = hvd.elastic.ElasticSampler(Rows(), shuffle=True, seed=0)
loader = hvd.elastic.DataLoader(Rows(), batch_size=8, sampler=sampler, num_workers=1)
state = hvd.elastic.TorchState(
    model=model, optimizer=optimizer, sampler=sampler, scheduler=scheduler, scaler=scaler, epoch=0, batch=0, total=0
)
calls: list[Any] = []


@hvd.elastic.run
def train(state: Any) -> None:
    calls.append([state.epoch, state.batch, state.total, hvd.size()])
    while state.epoch < options.epochs:
        for rows, wanted in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                found = model(rows)
            scaler.scale(functional.mse_loss(found.float(), wanted)).backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            time.sleep(options.step_time)
            state.batch += 1
            state.total += len(rows)
            if state.batch % options.per_commit == 0:
                state.commit()
        state.epoch += 1
        state.batch = 0
        sampler.set_epoch(state.epoch)


train(state)
learned = [parameter.detach().numpy() for parameter in model.parameters()]
values = [[group["lr"] for group in optimizer.param_groups], scheduler.last_epoch, scaler.get_scale(), state.epoch]
result = {"rank": hvd.rank(), "learned": path.digest(learned), "more": [*values, sampler.epoch]}
(options.out / f"calls-{os.getpid()}.json").write_text(json.dumps(calls))
(options.out / f"result-{os.getpid()}.json").write_text(json.dumps(result))
