"""A PyTorch loop whose workers come and go."""

import argparse
import contextlib
import json
import os
import zlib
from pathlib import Path
from typing import Any

import hanging
import mortal
import numpy as np
import path
import task
import torch

import edl.torch as edl
from edl.errors import RingBroken

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--step-time", type=float, default=0.04)
parser.add_argument("--epochs", type=int, help="known from the beginning")
parser.add_argument("--until", type=Path, required=True, help="a file that will hold the number of epochs")
parser.add_argument("--loaders", type=int, help="worker processes of an ElasticDataLoader")
parser.add_argument("--batch", type=int, default=4, help="what the job's batch policy is given")
parser.add_argument("--files", help="whose records name the samples")
parser.add_argument("--track", choices=["MlflowCallback", "WandbCallback"], help="what else is told of each step")
options = parser.parse_args()
torch.set_num_threads(1)
options.out.mkdir(parents=True, exist_ok=True)
inputs, targets = torch.from_numpy(task.INPUTS), torch.from_numpy(task.TARGETS)
edl.init()
torch.manual_seed(os.getpid())  # every worker begins with another model, and must be given the job's


class Numbers(torch.utils.data.Dataset[int]):
    """Each sample is its own number."""

    def __len__(self) -> int:
        return task.SAMPLES

    def __getitem__(self, number: int) -> int:
        return number


class Net(torch.nn.Sequential):
    """With a buffer that counts batches: a newcomer must receive it too."""

    def __init__(self) -> None:
        super().__init__(torch.nn.Linear(8, 6), torch.nn.LayerNorm(6), torch.nn.Tanh(), torch.nn.Linear(6, 1))
        self.batches: torch.Tensor
        self.register_buffer("batches", torch.zeros(1))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.batches += 1
        return super().forward(rows)


class Stuck(Numbers):
    """No sample ever comes."""

    def __getitem__(self, number: int) -> int:
        hanging.asleep()
        return number


def alone() -> None:
    """A collective that no other worker comes to."""
    edl.allreduce(torch.ones(1), name="mine alone")


def caught() -> None:
    """The same in a script that goes on after the error."""
    with contextlib.suppress(RuntimeError, RingBroken):
        alone()


def load() -> None:
    """By a loader whose worker is stuck."""
    next(iter(torch.utils.data.DataLoader(Stuck(), num_workers=1)))


model = Net()
optimizer = edl.Optimizer(torch.optim.Adam(model.parameters(), lr=0.01), model=model)
extra = edl.register(batches=0)
resizes: list[tuple[int, int]] = []
checks: list[int] = []  # of the ids of committed batches, as the script had them in its hands
track = None
if options.track is not None:
    from edl import callbacks

    track = getattr(callbacks, options.track)(edl, every=1)
edl.on_resize(lambda old, new: resizes.append((old, new)))


def train(ids: Any) -> None:
    rank, step = edl.rank(), edl.step()
    optimizer.zero_grad()
    mortal.in_step("computing", rank, step)
    loss = torch.nn.functional.mse_loss(model(inputs[ids]), targets[ids])
    loss.backward()
    optimizer.step()
    mortal.in_step("applied", rank, step)
    path.pause(options)
    hanging.here(options.out, collective=alone, astray=caught, loader=load)
    extra.batches += 1
    if edl.rehearsing():
        mortal.before_rehearsed()
    if edl.notify_batch_end():
        checks.append(zlib.crc32(np.asarray(ids, np.int64).data))
        edl.report(loss=float(loss.detach()))
        if track is not None:
            track(loss=float(loss.detach()))
    mortal.in_step("committed", rank, step)


if options.loaders is None:
    shards = edl.elastic_shard_generator(options.files or task.SAMPLES, epochs=options.epochs, shuffle=True)
    batches: Any = lambda: shards.batches(options.batch)  # noqa: E731
else:
    dataset = edl.ElasticDataset(options.files) if options.files else Numbers()
    loader = edl.ElasticDataLoader(
        dataset, options.batch, True, epochs=options.epochs, num_workers=options.loaders, collate_fn=list
    )
    shards, batches = loader.shards, lambda: loader
while shards.epochs_done < path.epochs_wanted(options):
    for batch in batches():
        train(np.array([record["sample"] for record in batch]) if options.files else np.asarray(batch))

if track is not None:
    track.close()
state = {name: tensor.tolist() for name, tensor in model.state_dict().items()}
result = {"rank": edl.rank(), "state": state, "batches": extra.batches, "step": edl.step(), "resizes": resizes}
result["checks"] = checks
(options.out / f"result-{os.getpid()}.json").write_text(json.dumps(result))
