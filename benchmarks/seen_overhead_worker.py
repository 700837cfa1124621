"""One worker of benchmarks/seen_overhead.py: steps under edl, each with its time, until it is told to end."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

import edl.torch as edl
from benchmarks.overhead_worker import SAMPLES, torch_model, torch_step

NEWEST = 10**9  # step that no job comes to


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batch", type=int, required=True)
    options = parser.parse_args()
    edl.init()
    model, optimizer = torch_model()
    step = torch_step(model, edl.Optimizer(optimizer, model=model))
    ended, took, last = [], [], NEWEST
    end = options.folder / "end"
    for ids in edl.elastic_shard_generator(SAMPLES, epochs=10**6, shuffle=True).batches(options.batch):
        at = time.perf_counter()
        step(ids)
        made = edl.step()
        edl.report(loss=1.0 / made)
        edl.notify_batch_end()
        took.append(time.perf_counter() - at)
        ended.append(time.time())
        if made % 50 == 0 and last == NEWEST and end.exists():
            last = int(end.read_text())
        if made >= last:
            break
    np.save(options.folder / f"steps-{edl.rank()}.npy", np.array([ended, took]))


if __name__ == "__main__":
    main()
