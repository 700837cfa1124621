"""A loop as Accelerate's documentation has it, with virtual workers; tells the digest of all that it has trained."""

import argparse
import hashlib
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import edl.torch as edl
from edl.accelerate import Accelerator

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--pace", type=Path, required=True)
options = parser.parse_args()
torch.manual_seed(5)
torch.set_num_threads(1)
accelerator: Any = Accelerator(cpu=True, gradient_accumulation_steps=2)
drawn = torch.Generator().manual_seed(1)
samples = TensorDataset(torch.randn(102, 8, generator=drawn), torch.randn(102, 1, generator=drawn))
loader: Any = DataLoader(samples, batch_size=4, shuffle=True)
model: Any = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 1))
optimizer: Any = torch.optim.AdamW(model.parameters(), lr=0.01)
schedule: Any = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=400)
optimizer, model, loader, schedule = accelerator.prepare(optimizer, model, loader, schedule)
for _ in loader.epochs(options.epochs):
    for rows, targets in loader:
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.mse_loss(model(rows), targets))
            torch.rand(3)  # as of a script's own, between backward() and the next batch
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
                time.sleep(float(options.pace.read_text()))
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
found = [*model.state_dict().values()]
found += [one for state in optimizer.state_dict()["state"].values() for one in state.values()]
digest = hashlib.sha256(b"".join(one.numpy().tobytes() for one in found) + repr(schedule.get_last_lr()).encode())
(options.out / f"digest-{edl.rank()}.json").write_text(json.dumps({"digest": digest.hexdigest()}))
