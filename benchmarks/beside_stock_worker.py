"""One worker of benchmarks/beside_stock.py: on stock Horovod, or under edl."""

from __future__ import annotations

import argparse
import importlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.overhead_worker import (
    SAMPLES,
    WARM_UP,
    plain_batches,
    tensorflow_model,
    tensorflow_step,
    torch_model,
    torch_step,
)

Job = tuple[int, Iterator[Any], Callable[[Any], None], Callable[[], object]]  # rank, ids, a step, its end


def stock(framework: str, batch: int) -> Job:
    hvd: Any = importlib.import_module(f"horovod.{framework}")
    hvd.init()
    batches = plain_batches(batch, hvd.rank(), hvd.size())
    if framework == "torch":
        model, optimizer = torch_model()
        wrapped = hvd.DistributedOptimizer(optimizer, named_parameters=list(model.named_parameters()))
        return hvd.rank(), batches, torch_step(model, wrapped), lambda: None
    return hvd.rank(), batches, tensorflow_step(*tensorflow_model(), hvd.DistributedGradientTape), lambda: None


def under_edl(framework: str, batch: int) -> Job:
    edl: Any = importlib.import_module(f"edl.{framework}")
    edl.init()
    model, optimizer = torch_model() if framework == "torch" else tensorflow_model()
    wrapped = edl.Optimizer(optimizer, model=model)
    step = torch_step(model, wrapped) if framework == "torch" else tensorflow_step(model, wrapped, lambda tape: tape)
    batches = edl.elastic_shard_generator(SAMPLES, epochs=10**6, shuffle=True).batches(batch)
    return edl.rank(), batches, step, edl.notify_batch_end


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["stock", "edl"])
    parser.add_argument("framework", choices=["torch", "tensorflow"])
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    rank, batches, step, end = {"stock": stock, "edl": under_edl}[options.kind](options.framework, options.batch)
    wall_s: list[float] = []
    cpu = 0.0
    for number in range(WARM_UP + options.steps):
        if number == WARM_UP:
            cpu = time.process_time()
        at = time.perf_counter()
        step(next(batches))
        end()
        wall_s.append(time.perf_counter() - at)
    found = {"wall_s": wall_s[WARM_UP:], "cpu_s": time.process_time() - cpu}
    (options.out / f"steps-{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
