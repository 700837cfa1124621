"""Thousands of simulated jobs under faults, on all cores; every invariant is checked after every event.

    python -m benchmarks.simulation --seeds 10000

Prints how much went wrong and whether anything broke. Exit code 1 when an invariant did: the seed and its transcript
are shown, and `--first SEED --seeds 1` with the same flags plays it again.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import multiprocessing
import os
import resource
import signal
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from functools import partial

from tests.model import SimJob, Violation, scenario
from tests.model.leader_shells import ShellJob
from tests.model.scenario import JobKind

BLOCK = 50  # seeds a process takes at a time
STORIES = 3  # failures told in full


@dataclass
class Tally:
    """What came of some seeds."""

    seeds: int = 0
    events: int = 0
    steps: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.seeds += other.seeds
        self.events += other.events
        self.steps += other.steps
        self.faults += other.faults
        self.ends += other.ends
        self.failures += other.failures


def play(seeds: range, kind: JobKind | None = None, job_class: type[SimJob] = SimJob) -> Tally:
    """Simulate each of `seeds`, as jobs of this kind (`tests.model.scenario`)."""
    tally = Tally(seeds=len(seeds))
    for seed in seeds:
        job = scenario(seed, job_class, **(kind or {}))
        try:
            job.run()
        except Violation as violation:
            tally.failures.append((seed, str(violation)))
        except Exception:  # noqa: BLE001 - a machine that raises has failed, however it did
            tally.failures.append((seed, job.story(traceback.format_exc())))
        tally.events += job.events
        tally.steps += job.checks.steps
        tally.faults.update({fault.value: count for fault, count in job.struck.items()})
        tally.ends[job.end] += 1
    return tally


def _begin() -> None:
    """In a process that plays: Ctrl-C is the first process's to hear, and garbage is looked for less often."""
    logging.disable()  # what leaders of production log
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.set_threshold(100_000, 50, 100)  # a sixth of the time goes there else, as a job leaves little behind


def play_all(seeds: range, processes: int, kind: JobKind, job_class: type[SimJob]) -> tuple[Tally, bool]:
    """All of them, some at a time; False: it was interrupted."""
    blocks = [seeds[at : at + BLOCK] for at in range(0, len(seeds), BLOCK)]
    whole, shown = Tally(), time.monotonic()
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes, _begin) as pool:
        try:
            for tally in pool.imap_unordered(partial(play, kind=kind, job_class=job_class), blocks):
                whole.add(tally)
                if time.monotonic() - shown > (0.5 if sys.stderr.isatty() else 15):
                    shown = time.monotonic()
                    show_progress(whole, len(seeds))
        except KeyboardInterrupt:
            return whole, False
        pool.close()
        pool.join()
    return whole, True


def show_progress(tally: Tally, seeds: int) -> None:
    failed = f"{len(tally.failures)} failed{''.join(f' {seed}' for seed, _ in tally.failures[-5:])}"
    line = f"{tally.seeds} of {seeds} seeds, {failed}"
    sys.stderr.write(f"\r{line}" if sys.stderr.isatty() else f"{line}\n")
    sys.stderr.flush()


def cpu_s() -> float:
    """Of all processes that have ended: other programs on the machine take elapsed time, and not this."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def report(tally: Tally, elapsed_s: float, processes: int) -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\r")
    for seed, story in sorted(tally.failures)[:STORIES]:
        print(f"--- seed {seed}\n{story}\n")
    rate, each_ms = tally.seeds / elapsed_s, 1000 * cpu_s() / max(tally.seeds, 1)
    print(f"{tally.seeds} seeds in {elapsed_s:.1f} s on {processes} processes: {rate:.0f} a second")
    print(f"{each_ms:.1f} ms of CPU for each seed")
    print(f"{tally.events:,} events, {tally.steps:,} steps trained, {sum(tally.faults.values()):,} faults:")
    for kind, count in tally.faults.most_common():
        print(f"  {count:7,} {kind}")
    print("how the jobs ended:")
    for end, count in tally.ends.most_common():
        print(f"  {count:7,} {end}")
    seeds = ", ".join(str(seed) for seed, _ in sorted(tally.failures)[:20])
    print(f"broken invariants: {len(tally.failures)}{f' (seeds {seeds})' if seeds else ''}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulation", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10_000, help="how many (default: 10000)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (default: 0)")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)), help="default: one per core")
    parser.add_argument("--json", action="store_true", help="print figures for programs")
    parser.add_argument("--sends-large", action="store_true", help="large states go to newcomers over several steps")
    parser.add_argument("--streams", action="store_true", help="what the jobs train on has no length")
    parser.add_argument("--limbs", action="store_true", help="each worker is two or three processes")
    parser.add_argument("--remnants", action="store_true", help="so it is, and workers lose different ones at once")
    parser.add_argument("--shells", action="store_true", help="leaders are production's, on a loop in virtual time")
    arguments = parser.parse_args()
    began = time.monotonic()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    kind = JobKind(
        sends_large=arguments.sends_large,
        streams=arguments.streams,
        limbs=arguments.limbs,
        remnants=arguments.remnants,
    )
    tally, whole = play_all(seeds, arguments.processes, kind, ShellJob if arguments.shells else SimJob)
    elapsed_s = time.monotonic() - began
    if arguments.json:
        print(json.dumps({**vars(tally), "seconds": round(elapsed_s, 1)}))
    else:
        report(tally, elapsed_s, arguments.processes)
    if not whole:
        print("interrupted", file=sys.stderr)
        return 130
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
