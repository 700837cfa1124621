"""A worker whose steps take as long as it is told: for each size, or longer for one slot while a file is there."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import torch

import edl.torch as edl

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--step-s", type=json.loads, default={}, help='seconds by size, such as {"1": 0.2}')
parser.add_argument("--slow-slot", type=int, default=-1, help="the worker of `edl run` that is slow")
parser.add_argument("--slow-s", type=float, default=0.0, help="what it takes longer")
parser.add_argument("--sample-s", type=float, default=0.0, help="instead, for each sample; twice that for the slow one")
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--slow-while", type=Path, help="only while this file is there")
options = parser.parse_args()

edl.init()
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Linear(64, 10)
optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=0.01), model=model)
images, labels = torch.randn(4096, 64), torch.randint(10, (4096,))
slow = int(os.environ.get("EDL_SLOT", "0")) == options.slow_slot


def is_slow() -> bool:
    """This worker, just now."""
    return slow and (options.slow_while is None or options.slow_while.exists())


def late_s() -> float:
    """What this worker takes longer just now."""
    return float(options.slow_s) if is_slow() else 0.0


# A long epoch: towards the end of a short one a newcomer finds all samples leased, and has none in its steps.
for numbers in edl.elastic_shard_generator(10_000_000, epochs=10).batches(options.batch):
    ids = numbers % len(images)
    began = time.perf_counter()
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(images[ids]), labels[ids])
    wanted_s = options.step_s.get(str(edl.size()), 0.05) + late_s()
    if options.sample_s:
        wanted_s = options.sample_s * len(ids) * (2 if is_slow() else 1)
    time.sleep(max(0.0, wanted_s - (time.perf_counter() - began)))  # before backward(), which waits for the others
    loss.backward()
    optimizer.step()
    edl.report(loss=loss.item())
    edl.notify_batch_end()
