"""Newcomers of two processes come and go, again and again: does a job crash, do workers differ, does memory grow?

    python -m tests.soaks.limb_newcomers [--newcomers 100] [--every 10] [--step-ms 50] [--within-s S] [--json]

One job of `edl run -np 2 --processes 2` trains a model that FSDP2 shards over the processes of each worker. It is
scaled to three workers and back to two, over and over; between two changes the job makes at least `--every` steps.
All workers compare their weights each 10 steps. Told are: newcomers, steps, the pause of each change, the memory of the
four processes that stay, after the first tenth of the newcomers and in the end.

Exit code 1 if the job fails, workers differ, the audit is not clean, or a process that stays holds more than a tenth
more memory in the end.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness import wait_true
from edl import client
from edl.errors import EdlError

SCRIPT = Path(__file__).parents[1] / "integration" / "jobs" / "sharded.py"
NAME = "newcomers"
PATIENCE_S = 300.0
GROWTH = 1.1  # of the memory of a process that stays


def until(condition: Callable[[], bool], what: str) -> None:
    if not wait_true(condition, PATIENCE_S):
        raise TimeoutError(f"{what}: not within {PATIENCE_S:g} s")


def is_there() -> bool:
    try:
        with client.Job(NAME) as job:
            return job.status().size > 0
    except EdlError:
        return False


def held(job: client.Job) -> dict[int, int]:
    """Return the bytes that each process of the workers in the ring holds."""
    processes = [each for worker in job.status().workers if worker.rank is not None for each in worker.processes]
    pages = {each.pid: int(Path(f"/proc/{each.pid}/statm").read_text().split()[1]) for each in processes}
    return {pid: count * os.sysconf("SC_PAGE_SIZE") for pid, count in pages.items()}


def change(job: client.Job, size: int, every: int) -> None:
    """Scale the job, and let it make some steps at that size."""
    began = job.status().step
    until(lambda: job.status().step >= began + every, "steps")
    job.scale(size)
    until(lambda: job.status().size == size, f"{size} workers")


def play(options: argparse.Namespace, folder: Path, job: client.Job) -> dict[str, Any]:
    until(lambda: job.status().size == 2 and job.status().step > options.every, "two workers")
    before: dict[int, int] = {}
    began, came = time.monotonic(), 0
    for number in range(options.newcomers):
        if options.within_s and time.monotonic() - began > options.within_s:
            break
        change(job, 3, options.every)
        change(job, 2, options.every)
        came = number + 1
        if not before and (number >= options.newcomers // 10 or time.monotonic() - began > options.within_s / 10 > 0):
            before = held(job)
        print(f"{came} newcomers, step {job.status().step}", file=sys.stderr, flush=True)
    after, steps = held(job), job.status().step
    (folder / "stop").touch()
    grown = {pid: after[pid] / before[pid] for pid in before if pid in after}
    return {
        "newcomers": came,
        "steps": steps,
        "megabytes": {pid: [round(before[pid] / 2**20), round(after[pid] / 2**20)] for pid in grown},
        "stay": len(grown),
        "growth": round(max(grown.values(), default=0.0), 3),
    }


def judged(found: dict[str, Any], events: list[dict[str, Any]]) -> dict[str, Any]:
    kinds = [one["kind"] for one in events]
    pauses = sorted(one["pause_ms"] for one in events if one["kind"] == "scaled" and one.get("pause_ms") is not None)
    return {
        **found,
        "lost": kinds.count("worker_lost"),
        "void": kinds.count("batch_voided"),
        "differ": sum("diverged" in kind for kind in kinds),
        "changes": len(pauses),
        "median_pause_ms": round(statistics.median(pauses), 1) if pauses else None,
        "p90_pause_ms": round(pauses[int(0.9 * (len(pauses) - 1))], 1) if pauses else None,
        "longest_pause_ms": round(pauses[-1], 1) if pauses else None,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soaks.limb_newcomers", description=__doc__.splitlines()[0])
    parser.add_argument("--newcomers", type=int, default=100, help="how many come, and go (default: 100)")
    parser.add_argument("--every", type=int, default=10, help="steps between two changes, at least (default: 10)")
    parser.add_argument("--step-ms", type=float, default=50, help="a step takes as long, at least (default: 50)")
    parser.add_argument(
        "--within-s", type=float, default=0, help="none comes after so many seconds (default: no limit)"
    )
    parser.add_argument("--json", action="store_true", help="print figures for programs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pace").write_text(str(options.step_ms / 1000))
        environment = {**os.environ, "EDL_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
        os.environ["EDL_HOME"] = environment["EDL_HOME"]
        (folder / "home").mkdir(mode=0o700)
        command = [
            *(sys.executable, "-m", "edl", "run", "-np", "2", "--processes", "2", "--max-np", "3", "--job", NAME),
            *("--ring", "torch", "--check-weights", "10", "--audit", str(folder / "audit")),
            *(sys.executable, str(SCRIPT), "--out", name, "--pace", str(folder / "pace")),
            *("--stop", str(folder / "stop")),
        ]
        began = time.monotonic()
        with (folder / "log").open("wb") as log:
            job = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            until(is_there, "a job")
            with client.Job(NAME) as kit:
                found = play(options, folder, kit)
            code = job.wait(PATIENCE_S)
        except BaseException:
            sys.stderr.write((folder / "log").read_text()[-4000:])
            raise
        finally:
            job.terminate()
        edl = [sys.executable, "-m", "edl"]
        told = subprocess.run(
            [*edl, "events", NAME, "--json"], check=False, env=environment, capture_output=True, text=True
        )
        events = [json.loads(line) for line in told.stdout.splitlines()]
        audit = subprocess.run(
            [*edl, "data", "verify", str(folder / "audit")], check=False, env=environment, capture_output=True
        )
        found = {**judged(found, events), "code": code, "audit": audit.returncode, "s": round(time.monotonic() - began)}
    well = not (found["code"] or found["audit"] or found["lost"] or found["differ"]) and found["stay"] == 4
    well = well and found["growth"] <= GROWTH
    print(json.dumps(found) if options.json else "\n".join(f"{key:18} {value}" for key, value in found.items()))
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
