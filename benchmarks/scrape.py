"""What a scrape of a leader costs: milliseconds until it is read, milliseconds of a processor, and bytes.

    python -m benchmarks.scrape [--workers 1000] [--scrapes 20]

A made-up job of so many workers is served by the real server of a daemon, and read by a process of its own by HTTP.
Scrapes come further apart than an answer is kept, so that each is made anew. The processor's time is that of the
process that serves, over all scrapes, and within it what keeps the daemon's loop from other work. Besides it `status`
is worked out for each scrape, which is what `edl status` costs a leader: `python -m benchmarks.ledger` has a real one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from typing import Final

from edl.daemon.metrics.families import Family, of_job
from edl.daemon.metrics.server import KEPT_S, MetricsServer
from edl.host.network import LOOPBACK
from edl.protocol.data import DataCounts
from edl.protocol.figures import Rate, Usage
from edl.protocol.job import JobState, Stable, Status, WorkerState, WorkerStatus
from edl.protocol.tally import Doing, Tally

READER: Final = """
import gzip, json, sys, time, urllib.request
url, scrapes, apart = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
for _ in range(scrapes):
    time.sleep(apart)
    began = time.perf_counter()
    with urllib.request.urlopen(url, timeout=60) as answer:
        body = answer.read()
    took = time.perf_counter() - began
    print(json.dumps([took, len(body), len(gzip.compress(body))]), flush=True)
"""


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


async def measure(workers: int, scrapes: int) -> None:
    seen, collecting = status(workers), []

    def read() -> list[Family]:
        began = time.thread_time()
        found = of_job(seen, 1000.0)
        collecting.append(time.thread_time() - began)
        return found

    server = MetricsServer(read)
    port = await server.start(LOOPBACK, 0)
    reader = await asyncio.create_subprocess_exec(
        sys.executable, "-c", READER, f"http://{LOOPBACK}:{port}/metrics", str(scrapes), str(KEPT_S + 0.1),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert reader.stdout is not None
    spent, waited, size, packed = [], [], 0, 0
    before = time.process_time()
    while line := await reader.stdout.readline():
        spent.append(time.process_time() - before)
        wall_s, size, packed = json.loads(line)
        waited.append(wall_s)
        before = time.process_time()
    if await reader.wait() or len(collecting) != scrapes:
        raise SystemExit(f"{len(waited)} of {scrapes} scrapes were read, {len(collecting)} made")
    await server.stop()
    wall, took, loop = (1000 * statistics.median(found) for found in (waited, spent, collecting))
    print(
        f"{workers} workers, {scrapes} scrapes by HTTP: {wall:.1f} ms (median; the longest {1000 * max(waited):.1f}), "
        f"{took:.1f} ms of a processor, of which {loop:.1f} in the daemon's loop; "
        f"{size:,} bytes, {packed:,} packed"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--scrapes", type=int, default=20)
    options = parser.parse_args()
    asyncio.run(measure(options.workers, options.scrapes))


if __name__ == "__main__":
    main()
