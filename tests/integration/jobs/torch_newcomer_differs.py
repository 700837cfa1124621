"""PyTorch: a newcomer does something else than the others, in one of the ways that are easily written."""

import argparse
import random
import time
from pathlib import Path

import torch

import edl.torch as edl

parser = argparse.ArgumentParser()
parser.add_argument("--until", type=Path, required=True, help="train until the step that this file names")
parser.add_argument("--fault", choices=["rate", "late", "schedule", "float", "enumerate"], required=True)
options = parser.parse_args()


class OwnCount:
    """The steps of the job since this worker joined. A void mini-batch does not count, as it would on some survivors of
    a broken ring and not on others.
    """

    def __init__(self) -> None:
        self._joined: int | None = None

    def now(self) -> int:
        if self._joined is None and not edl.rehearsing():
            self._joined = edl.step()
        return 0 if self._joined is None else edl.step() - self._joined


def is_one_of(count: int, every: int) -> bool:
    """Say that of one count in so many, in no period that a newcomer could fall into by chance."""
    return random.Random(count).random() < 1 / every


def decay(count: int) -> float:
    return 0.9 if is_one_of(count, every=20) else 1.0


edl.init()
model = torch.nn.Linear(4, 1)
optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), model=model)
schedule = torch.optim.lr_scheduler.MultiplicativeLR(optimizer, decay)
kept = edl.register(best=9e9)
shards = edl.elastic_shard_generator(1 << 20, epochs=1)
own_count = OwnCount()
for ids in shards.batches(4):
    count = own_count.now()
    if options.fault == "rate":
        for group in optimizer.param_groups:
            group["lr"] = 0.05 * 0.99**count
    loss = model(torch.rand(len(ids), 4)).square().mean()
    loss.backward()
    if options.fault != "enumerate" or is_one_of(count, every=2):  # gradients are added up until then
        optimizer.step()
        optimizer.zero_grad()
    if options.fault == "late" and count == 24:
        for group in optimizer.param_groups:
            group["lr"] *= 0.9
    if options.fault == "schedule":
        schedule.step()
    if options.fault == "float" and count % 8 == 7:
        kept.best = loss.detach()
    time.sleep(0.02)
    edl.notify_batch_end()
    if options.until.exists() and edl.step() > int(options.until.read_text()):
        break
