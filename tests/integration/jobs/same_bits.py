"""Trains one of three models with virtual workers, and tells the digest of all that it has trained."""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

import edl.torch as edl

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--model", choices=("mlp", "cnn", "transformer"), default="mlp")
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--pace", type=Path, help="file with the seconds that a step takes at least")
parser.add_argument("--loading", type=int, default=-1, help="processes of a DataLoader; -1: no loader")
parser.add_argument("--wrong", choices=("", "rounding", "order"), default="")
options = parser.parse_args()

SAMPLES = 203
torch.manual_seed(5)
drawn = torch.Generator().manual_seed(1)
inputs = torch.randn(SAMPLES, 64, generator=drawn)
targets = torch.randint(10, (SAMPLES,), generator=drawn)


class Samples(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, number):
        noise = random.random() + np.random.rand() + torch.rand(())  # noqa: NPY002 - as scripts draw
        return inputs[number] + 0.01 * noise, targets[number]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(8, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(16, 10)

    def forward(self, rows):
        return self.out(self.layers(self.into(rows.view(-1, 8, 8))).mean(1))


def mlp():
    return nn.Sequential(nn.Linear(64, 48), nn.GELU(), nn.Dropout(0.2), nn.Linear(48, 10))


def cnn():
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(72, 10),
    )  # fmt: skip


model = {"mlp": mlp, "cnn": cnn, "transformer": Attention}[options.model]()
optimizer: torch.optim.Optimizer
if options.model == "transformer":
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
else:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))
ema = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))

edl.init()
optimizer = edl.Optimizer(optimizer, model=model)
edl.register(schedule=schedule, ema=ema)
if options.loading >= 0:
    loader = edl.ElasticDataLoader(Samples(), 4, shuffle=True, epochs=options.epochs, num_workers=options.loading)
    batches = iter(loader)
else:
    batches = edl.elastic_shard_generator(SAMPLES, epochs=options.epochs, shuffle=True).batches(4)


def digest() -> str:
    found = hashlib.sha256()
    for one in (model, ema):
        for name, tensor in one.state_dict().items():
            found.update(name.encode() + tensor.contiguous().numpy().tobytes())
    for state in optimizer.state_dict()["state"].values():
        for name, value in sorted(state.items()):
            found.update(name.encode() + (value.numpy().tobytes() if isinstance(value, torch.Tensor) else b""))
    return found.hexdigest()


total = 0.0
for batch in batches:
    optimizer.zero_grad()
    swapped = options.wrong == "order" and edl.step() == 7
    for part, share in edl.microbatches(np.concatenate([batch[1::-1], batch[2:]]) if swapped else batch):
        x, y = part if options.loading >= 0 else (inputs[part], targets[part])
        loss = nn.functional.cross_entropy(model(x), y)
        (loss * share).backward()
    if options.model == "transformer":
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    if options.wrong == "rounding" and edl.step() == 7:
        first = next(model.parameters()).detach().view(-1)
        first[0] = torch.nextafter(first[0], first[0] + 1)
    schedule.step()
    ema.update_parameters(model)
    if options.pace is not None:
        time.sleep(float(options.pace.read_text() or 0))
    edl.notify_batch_end()
(options.out / f"digest{edl.rank()}.{edl.size()}.json").write_text(
    json.dumps({"digest": digest(), "step": edl.step() - 1, "size": edl.size(), "generation": edl.generation()})
)
