"""What a scrape of a leader costs: milliseconds of a processor and bytes, for so many workers.

python -m benchmarks.scrape --workers 1000
"""

from __future__ import annotations

import argparse
import gzip
import statistics
import time

from edl.daemon.metrics.exposition import encoded
from edl.daemon.metrics.families import of_job
from edl.protocol.data import DataCounts
from edl.protocol.figures import Rate, Usage
from edl.protocol.job import JobState, Stable, Status, WorkerState, WorkerStatus
from edl.protocol.tally import Doing, Tally


def status(workers: int) -> Status:
    """Of a job in the middle of its life."""
    usage = Usage(1000.0, 7000, 301.25, 12.5, 900.0, 3_000_000_000, {"loss": 0.1234567, "accuracy": 0.98}, 686.25)
    return Status(
        job="job",
        state=JobState.RUNNING,
        reason="",
        term=3,
        generation=12,
        leader="w0",
        step=7000,
        epoch=3,
        size=workers,
        target=workers,
        min_workers=1,
        max_workers=0,
        workers=tuple(
            WorkerStatus(f"w{n:08x}", n, f"node{n // 8}", 1, 2, WorkerState.TRAINING, 7000, usage)
            for n in range(workers)
        ),
        data=DataCounts(3, 1_000_000, 600_000, 300_000, 100_000, 512),
        spec=None,
        rate=Rate(workers, 1000, 64_000, 100.0),
        tally=Tally(at=1.0, doing=Doing.TRAINING, good_s=9000.0, bad_s={"switch": 3.0}),
        stable=Stable(7000, 448_000),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--scrapes", type=int, default=20)
    options = parser.parse_args()
    seen, collecting, whole = status(options.workers), [], []
    body = b""
    for _ in range(options.scrapes):
        began = time.process_time()
        families = of_job(seen, 1000.0)
        collected = time.process_time()
        body, _ = encoded(families, "")
        collecting.append(1000 * (collected - began))
        whole.append(1000 * (time.process_time() - began))
    took, loop = statistics.median(whole), statistics.median(collecting)
    print(
        f"{options.workers} workers: {took:.1f} ms of a processor a scrape, of which {loop:.1f} in the daemon's loop; "
        f"{len(body):,} bytes, {len(gzip.compress(body)):,} packed"
    )


if __name__ == "__main__":
    main()
