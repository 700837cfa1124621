"""Weights that do not depend on the number of workers: the digest at the end is the same with -np 1, 3 or 4.

edl run -np 2 --virtual-workers 4 python examples/torch_same_bits.py
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import torch

import edl.torch as edl

DIGITS = Path(__file__).resolve().parents[1] / "data" / "digits" / "digits.csv.gz"


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    table = np.loadtxt(DIGITS, delimiter=",", dtype=np.float32)
    images, labels = torch.from_numpy(table[:, :64] / 16), torch.from_numpy(table[:, 64].astype(np.int64))

    edl.init()
    layers = [torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Dropout(0.1)]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(64, 10))
    optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model=model)

    shards = edl.elastic_shard_generator(len(images), epochs=3, shuffle=True)
    for ids in shards.batches(16):  # of each virtual worker
        optimizer.zero_grad()
        for part, share in edl.microbatches(ids):
            (torch.nn.functional.cross_entropy(model(images[part]), labels[part]) * share).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        edl.notify_batch_end()

    digest = hashlib.sha256(b"".join(one.numpy().tobytes() for one in model.state_dict().values())).hexdigest()
    model.eval()
    accuracy = (model(images).argmax(dim=1) == labels).float().mean().item()
    print(f"rank {edl.rank()} of {edl.size()}: weights {digest[:16]}, accuracy {accuracy:.3f}", flush=True)


if __name__ == "__main__":
    main()
