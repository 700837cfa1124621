"""One worker of tests/soaks/hosts.py: digits are learnt, and each step is noted with the worker's place in the ring."""

from __future__ import annotations

import argparse
import json
import socket
import time
from pathlib import Path

import horovod.torch as hvd

import edl.torch as edl
from benchmarks.worker import MODELS, TorchTask
from edl.proof.step_figures import digest


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, help="that all hosts share")
    parser.add_argument("--step-time", type=float, default=0.05)
    options = parser.parse_args()
    edl.init()
    task = TorchTask("digits")
    task.use_edl(edl)
    until = options.folder / "epochs"
    name = f"{socket.gethostname()}-{time.time_ns()}.jsonl"  # process ids come again on other hosts
    notes = (options.folder / "notes" / name).open("w", buffering=1)
    booted = edl.local_rank()

    def note(kind: str, **values: object) -> None:
        values |= {"kind": kind, "generation": edl.generation(), "step": edl.step() - 1, "at": time.time()}
        notes.write(json.dumps(values) + "\n")

    edl.on_resize(lambda _, size: note("switch", size=size, digest=digest(task.weights())))
    model = MODELS["digits"]
    shards = edl.elastic_shard_generator(model.samples, shuffle=True)
    wanted = 2**31
    while shards.epochs_done < wanted:
        for ids in shards.batches(model.batch):
            task.train(ids)
            time.sleep(options.step_time)
            if edl.notify_batch_end():
                told = [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()]
                note("step", place=[edl.rank(), edl.size(), edl.local_rank()], horovod=told, booted=booted)
        wanted = int(until.read_text()) if until.exists() else wanted
        note("epoch", done=shards.epochs_done)
    note("end", digest=digest(task.weights()))


if __name__ == "__main__":
    main()
