"""A worker of the jobs of `benchmarks/cluster.py`: digits or sonnets, each step as long as it is told to be at least.

What a GPU would compute is waited for, so that a job with twice the workers is twice as fast on a machine with few
cores, too. The first of the job's workers prints a line after each step: the time, the step, how many they are.
"""

from __future__ import annotations

import argparse
import runpy
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import edl.torch as edl

ROOT = Path(__file__).resolve().parents[1]
STEP = "@"  # what its lines begin with


def digits() -> tuple[nn.Module, int, Callable[[nn.Module, Tensor], Tensor]]:
    table = np.loadtxt(ROOT / "data" / "digits" / "digits.csv.gz", delimiter=",", dtype=np.float32)
    images, labels = torch.from_numpy(table[:, :64] / 16), torch.from_numpy(table[:, 64].astype(np.int64))
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return model, len(images), lambda model, ids: nn.functional.cross_entropy(model(images[ids]), labels[ids])


STRIDE = 16  # a sample begins at every so many characters


def sonnets() -> tuple[nn.Module, int, Callable[[nn.Module, Tensor], Tensor]]:
    """The language model of the examples."""
    example = runpy.run_path(str(ROOT / "examples" / "torch_language_model.py"))
    text = example["SONNETS"].read_text()
    alphabet = sorted(set(text))
    codes = torch.tensor([alphabet.index(character) for character in text])
    windows = codes.unfold(0, example["CONTEXT"] + 1, STRIDE)

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        inputs, wanted = windows[ids][:, :-1], windows[ids][:, 1:]
        return nn.functional.cross_entropy(model(inputs).flatten(0, 1), wanted.flatten())

    return example["Poet"](len(alphabet)), len(windows), loss


MODELS = {"digits": digits, "sonnets": sonnets}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=sorted(MODELS))
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--step-time", type=float, required=True)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    edl.init()
    model, samples, loss_of = MODELS[options.model]()
    optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=0.05), model=model)
    shards = edl.elastic_shard_generator(samples, epochs=options.epochs, shuffle=True, seed=0)
    began = time.monotonic()
    for ids in shards.batches(options.batch):
        optimizer.zero_grad()
        loss = loss_of(model, torch.as_tensor(ids))
        loss.backward()
        time.sleep(max(0.0, began + options.step_time - time.monotonic()))
        optimizer.step()
        if edl.notify_batch_end() and edl.rank() == 0:
            print(STEP, f"{time.time():.3f} {edl.step()} {edl.size()}", flush=True)
        began = time.monotonic()


if __name__ == "__main__":
    main()
