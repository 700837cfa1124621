"""Handwritten digits with PyTorch: any script becomes elastic with five calls of `edl`.

edl run -np 2 python examples/torch_digits.py
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch

import edl.torch as edl

DIGITS = Path(__file__).resolve().parents[1] / "data" / "digits" / "digits.csv.gz"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--step-time", type=float, default=0.0, help="seconds that a step takes at least, to watch it")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    table = np.loadtxt(DIGITS, delimiter=",", dtype=np.float32)
    images, labels = torch.from_numpy(table[:, :64] / 16), torch.from_numpy(table[:, 64].astype(np.int64))

    edl.init()
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model=model)
    seen = edl.register(samples=0)

    shards = edl.elastic_shard_generator(len(images), epochs=options.epochs, shuffle=True, seed=0)
    for ids in shards.batches(options.batch):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images[ids]), labels[ids])
        loss.backward()
        optimizer.step()
        edl.report(loss=loss.item())
        seen.samples += len(ids)  # before notify_batch_end(), which takes it back if this mini-batch does not count
        time.sleep(options.step_time)
        if edl.notify_batch_end() and edl.rank() == 0 and edl.step() % 20 == 0:
            print(f"step {edl.step()} epoch {edl.epoch()} size {edl.size()} loss {loss.item():.3f}", flush=True)

    accuracy = (model(images).argmax(dim=1) == labels).float().mean().item()
    print(f"rank {edl.rank()} of {edl.size()}: accuracy {accuracy:.3f}, {seen.samples} samples here", flush=True)


if __name__ == "__main__":
    main()
