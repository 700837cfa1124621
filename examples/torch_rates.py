"""A batch that grows with the workers up to a limit, a learning rate that follows it, and a schedule for any size.

edl run -np 2 --max-np 3 --job rates --batch-policy fixed-local,most=72 python examples/torch_rates.py
edl scale rates 3 --wait           # meanwhile, in a second shell
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
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=32, help="samples of each worker")
    parser.add_argument("--step-time", type=float, default=0.05, help="seconds that a step takes at least, to watch it")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    table = np.loadtxt(DIGITS, delimiter=",", dtype=np.float32)
    images, labels = torch.from_numpy(table[:, :64] / 16), torch.from_numpy(table[:, 64].astype(np.int64))

    edl.init()
    edl.scale_rate("linear", base_batch=64)  # 0.1, as below, is for 64 samples of all workers together
    edl.schedule_rate(edl.Knee(explore=0.5, warmup=0.1))  # parts of all samples, however many steps these make
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model=model)

    for ids in edl.elastic_shard_generator(len(images), epochs=options.epochs, shuffle=True).batches(options.batch):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images[ids]), labels[ids])
        loss.backward()
        optimizer.step()
        edl.report(loss=loss.item())
        time.sleep(options.step_time)
        if edl.notify_batch_end() and edl.rank() == 0 and edl.step() % 20 == 0:
            print(f"step {edl.step()} size {edl.size()} batch {len(ids)} here loss {loss.item():.3f}", flush=True)

    if edl.rank() == 0:
        accuracy = (model(images).argmax(dim=1) == labels).float().mean().item()
        print(f"accuracy {accuracy:.3f}", flush=True)


if __name__ == "__main__":
    main()
