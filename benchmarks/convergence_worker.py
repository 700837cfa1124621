"""A worker that learns the UCI digits under a batch policy.

Rank 0 writes the loss before each step, and the accuracy at the end.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch

import edl.torch as edl
from benchmarks.worker import digits

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("out", type=Path)
parser.add_argument("--seed", type=int, required=True)
parser.add_argument("--batch", type=int, required=True, help="n of batches(n)")
parser.add_argument("--epochs", type=int, required=True)
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--rate", default="none", help="rule of edl.scale_rate")
parser.add_argument("--base-batch", type=int, default=64)
parser.add_argument("--ramp", type=int, default=8, help="steps")
parser.add_argument("--hold-at", type=int, default=0, help="from this step on go slowly, until others have come")
parser.add_argument("--step-s", type=float, default=0.01, help="least time of a step")
options = parser.parse_args()

HELD_S = 0.5  # a step, while others are waited for
HELD_OUT = 297  # of all samples, for the accuracy

images, labels = map(torch.from_numpy, digits())
order = torch.from_numpy(np.random.default_rng(0).permutation(len(labels)))
train, test = order[HELD_OUT:], order[:HELD_OUT]

edl.init()
torch.set_num_threads(1)
torch.manual_seed(options.seed)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
plain = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
optimizer = edl.Optimizer(plain, model=model)
edl.scale_rate(options.rate, base_batch=options.base_batch, steps=options.ramp)
shards = edl.elastic_shard_generator(len(train), epochs=options.epochs, shuffle=True, seed=options.seed)
losses: list[tuple[int, int, float]] = []  # step, workers, loss of all training samples before it
for ids in shards.batches(options.batch):
    began = time.perf_counter()
    optimizer.zero_grad()
    chosen = train[torch.from_numpy(ids)]
    torch.nn.functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
    if edl.rank() == 0:
        with torch.no_grad():
            loss = torch.nn.functional.cross_entropy(model(images[train]), labels[train]).item()
        losses.append((edl.step(), edl.size(), loss))
    held = edl.size() == 1 and 0 < options.hold_at <= edl.step()
    time.sleep(max(0.0, (HELD_S if held else options.step_s) - (time.perf_counter() - began)))
    optimizer.step()
    edl.notify_batch_end()
if edl.rank() == 0:
    with torch.no_grad():
        accuracy = (model(images[test]).argmax(1) == labels[test]).float().mean().item()
    (options.out / "result.json").write_text(json.dumps({"accuracy": accuracy, "losses": losses}))
