"""A job that outlives its machines: it is preempted, and the same line goes on at the exact sample.

edl run -np 2 --job outlive --checkpoint out/outlive --audit out/outlive-audit python examples/torch_preempted.py
edl preempt outlive                # meanwhile, in a second shell: the first line then ends with exit code 75
edl run -np 2 --job outlive --checkpoint out/outlive --audit out/outlive-audit python examples/torch_preempted.py
edl data verify out/outlive-audit  # each sample was trained once, over both lives
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
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--step-time", type=float, default=0.03, help="seconds that a step takes at least, to watch it")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    table = np.loadtxt(DIGITS, delimiter=",", dtype=np.float32)
    images, labels = torch.from_numpy(table[:, :64] / 16), torch.from_numpy(table[:, 64].astype(np.int64))

    edl.init()
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 64), torch.nn.Dropout(0.1), torch.nn.ReLU(), torch.nn.Linear(64, 10)
    )
    optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model=model)
    # The model, the optimizer, random numbers and the place in the data are saved anyway: this is the script's own.
    mine = edl.register(steps=0, schedule=torch.optim.lr_scheduler.StepLR(optimizer, step_size=100, gamma=0.5))

    # The epochs of all lives together: a loop of its own over epochs would begin to count anew.
    for ids in edl.elastic_shard_generator(len(images), epochs=options.epochs, shuffle=True).batches(options.batch):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images[ids]), labels[ids])
        loss.backward()
        optimizer.step()
        edl.report(loss=loss.item())
        mine.steps += 1  # before notify_batch_end(), where the job is saved
        mine.schedule.step()
        time.sleep(options.step_time)
        if edl.notify_batch_end() and edl.rank() == 0 and mine.steps % 20 == 0:
            print(f"step {mine.steps} in all, {edl.step() - 1} in this life, loss {loss.item():.3f}", flush=True)

    if edl.rank() == 0:
        model.eval()
        accuracy = (model(images).argmax(dim=1) == labels).float().mean().item()
        print(f"accuracy {accuracy:.3f} after {mine.steps} steps", flush=True)


if __name__ == "__main__":
    main()
