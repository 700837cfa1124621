"""Handwritten digits by a function: a program trains it on two workers, and gets back what they return.

python examples/function_digits.py
"""

from __future__ import annotations

from pathlib import Path

import edl

DIGITS = Path(__file__).resolve().parents[1] / "data" / "digits" / "digits.csv.gz"


def train(epochs: int, rate: float = 0.1) -> tuple[int, float]:
    """What stands in a script; each worker calls it."""
    import numpy as np
    import torch

    import edl.torch as edl

    torch.manual_seed(0)
    torch.set_num_threads(1)
    table = np.loadtxt(DIGITS, delimiter=",", dtype=np.float32)
    images, labels = torch.from_numpy(table[:, :64] / 16), torch.from_numpy(table[:, 64].astype(np.int64))

    edl.init()
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9), model=model)
    for ids in edl.elastic_shard_generator(len(images), epochs=epochs, shuffle=True, seed=0).batches(32):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images[ids]), labels[ids])
        loss.backward()
        optimizer.step()
        edl.report(loss=loss.item())
        edl.notify_batch_end()
    return edl.rank(), (model(images).argmax(dim=1) == labels).float().mean().item()


if __name__ == "__main__":
    for rank, accuracy in edl.run(train, args=(5,), kwargs={"rate": 0.1}, np=2):
        print(f"rank {rank}: accuracy {accuracy:.3f}")
