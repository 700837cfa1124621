"""A callback for changes of size: the learning rate follows the number of workers, in a ramp over some steps.

edl run -np 2 --job resize python examples/torch_resize.py
edl scale resize 1 --wait          # meanwhile, in a second shell
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch

import edl.torch as edl

DIGITS = Path(__file__).resolve().parents[1] / "data" / "digits" / "digits.csv.gz"
RATE = 0.05  # for each worker: as many samples more in a step bear as large a step
RAMP = 20  # steps


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--step-time", type=float, default=0.03, help="seconds that a step takes at least, to watch it")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    table = np.loadtxt(DIGITS, delimiter=",", dtype=np.float32)
    images, labels = torch.from_numpy(table[:, :64] / 16), torch.from_numpy(table[:, 64].astype(np.int64))

    edl.init()
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=RATE), model=model)
    # Registered, so that a newcomer gets it: it comes with numbers of its own, in the middle of a ramp perhaps.
    ramp = edl.register(begin=RATE, end=RATE * edl.size(), since=0)

    def rate() -> float:
        done = min(1.0, (edl.step() - ramp.since) / RAMP)
        return float(ramp.begin + done * (ramp.end - ramp.begin))

    def resized(old: int, new: int) -> None:
        ramp.begin, ramp.end, ramp.since = rate(), RATE * new, edl.step()
        if edl.rank() == 0:
            print(f"{old} -> {new} workers: rate {ramp.begin:.3f} -> {ramp.end:.3f} from step {ramp.since}", flush=True)

    edl.on_resize(resized)
    for ids in edl.elastic_shard_generator(len(images), epochs=options.epochs, shuffle=True).batches(options.batch):
        for group in optimizer.param_groups:
            group["lr"] = rate()
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images[ids]), labels[ids])
        loss.backward()
        optimizer.step()
        edl.report(loss=loss.item())
        time.sleep(options.step_time)
        if edl.notify_batch_end() and edl.rank() == 0 and edl.step() % 20 == 0:
            print(f"step {edl.step()} size {edl.size()} rate {rate():.3f} loss {loss.item():.3f}", flush=True)

    if edl.rank() == 0:
        accuracy = (model(images).argmax(dim=1) == labels).float().mean().item()
        print(f"accuracy {accuracy:.3f}", flush=True)


if __name__ == "__main__":
    main()
