"""One worker of `migrate.py`: a small PyTorch model with ballast trains epoch after epoch, and notes each step's end.

The ballast is state that a newcomer must receive and that costs a step nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

from benchmarks.worker import TorchTask

SAMPLES, BATCH, STEP_S = 400, 8, 0.02
ENOUGH = "enough"  # the file that ends the job, after the same epoch for all workers


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mb", type=int, default=0)
    options = parser.parse_args()
    import edl.torch as edl

    edl.init()
    task = TorchTask("square", 0, options.mb * 1_000_000)
    task.use_edl(edl)
    shards = edl.elastic_shard_generator(SAMPLES, shuffle=True)
    wanted = 2**31
    with (options.folder / f"{edl.local_rank()}-{os.getpid()}-{os.uname().nodename}.steps").open(
        "w", buffering=1
    ) as notes:
        while shards.epochs_done < wanted:
            for ids in shards.batches(BATCH):
                time.sleep(STEP_S)
                task.train(ids)
                step = edl.step()
                if edl.notify_batch_end():
                    notes.write(json.dumps({"at": time.monotonic(), "step": step, "size": edl.size()}) + "\n")
            enough = options.folder / ENOUGH
            wanted = int(enough.read_text()) if enough.exists() else wanted


if __name__ == "__main__":
    main()
