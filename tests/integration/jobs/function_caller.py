"""A script that has `edl.run` train a function of its own: one of these, by its name.

python function_caller.py trains|raises JOB UNTIL
"""

# ruff: noqa: T201 - a script prints

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import edl
from edl.errors import EdlError

SLOW_S = 0.02
FOREVER = 10**6


def trains(until: Path) -> tuple[int, int, float]:
    """Until so many epochs are done as that file says, once it is there."""
    import torch

    import edl.torch as edl

    edl.init()
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=0.01), model=model)
    shards = edl.elastic_shard_generator(24, shuffle=True)
    while shards.epochs_done < (int(until.read_text()) if until.exists() else FOREVER):
        for ids in shards.batches(4):
            optimizer.zero_grad()
            model(torch.as_tensor(ids).float().reshape(-1, 1).repeat(1, 3) / 24).sum().backward()
            optimizer.step()
            time.sleep(SLOW_S)
            edl.notify_batch_end()
    print("trained", edl.rank())
    return edl.rank(), edl.size(), float(model.weight.sum())


def raises(_until: Path) -> None:
    import edl.torch as edl

    edl.init()
    for ids in edl.elastic_shard_generator(1000).batches(4):
        if edl.step() == 3:
            raise ValueError(f"sample {ids[0]} is no good")
        edl.notify_batch_end()


if __name__ == "__main__":
    which, job, path = sys.argv[1:]
    try:
        found = edl.run(globals()[which], (Path(path),), np=2, max_np=3, job=job, ring="torch", max_restarts=1)
    except KeyboardInterrupt:
        print("KeyboardInterrupt", flush=True)
        sys.exit(130)
    except EdlError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        sys.exit(1)
    print(json.dumps(found), flush=True)
