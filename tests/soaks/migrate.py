"""A job of two leaves its host for another: how long does training stand still, and is every sample trained once?

    python -m tests.soaks.migrate [--mb 10 100] [--rounds 3] [--json]

Three hosts on this machine (network namespaces, joined by virtual cards): ZooKeeper on the first, `edl run -np 2` on
the second, `edl run -np 0` that waits on the third. Each round is a job of its own, with PyTorch, steps of 20 ms and
more, and --mb of state: it trains, `edl migrate --from alpha --to beta:2` is typed, and it trains on to its end.

    pause     the longest time without a step of the job, from the first of its two switches to a second after the last
    usual     the same in as long a time before, in which nothing happens: what the load on the machine makes of it
    step      the median step
    switch    the longest pause of a survivor in a switch, as edl tells it
    moving    from the first switch until no worker was left
    asked     from the command until no worker was left: nearly all of it is the boot of the newcomers

Medians of the rounds, and the longest. Exit code 1 if a sample is lost or repeated, a step is missing, or the median
pause at 100 MB is longer than the goal of 500 ms. Needs root, iproute2, and a kernel with veth and bridge.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.soaks.migrate_job import JOB, NEW, OLD, MovedJob
from tests.soaks.wired_net import why_no_wires

GOAL_MB, GOAL_S = 100, 0.5
BEFORE, AFTER = 100, 40  # steps
BOOT_S = 300.0
AFTER_S = 1.0


def move(mb: int) -> dict[str, Any]:
    """One job from its start to its end."""
    with tempfile.TemporaryDirectory() as name, MovedJob(Path(name), mb) as job:
        job.run(OLD, 2)
        job.run(NEW, 0)
        job.wait("a job that trains", lambda: len(job.steps()) > BEFORE, BOOT_S)
        asked = time.monotonic()
        done = job.edl("migrate", JOB, "--from", OLD, "--to", f"{NEW}:2")
        left = time.monotonic()
        if done.returncode:
            raise SystemExit(f"edl migrate: {done.stderr}\n{job.story()}")
        so_far = len(job.steps())
        job.wait("a job that trains on", lambda: len(job.steps()) > so_far + AFTER, BOOT_S)
        clock = time.time() - time.monotonic()
        account, steps = job.finish(), job.steps()
        return {"asked_s": left - asked, **_figures(steps, job.events(), clock), **_verdict(steps, account)}


def _figures(steps: list[tuple[float, int, int, str]], events: list[dict[str, Any]], clock: float) -> dict[str, float]:
    began = next(event["ts"] for event in events if "is left" in str(event.get("why", ""))) - clock
    ended = next(event["ts"] for event in events if event["kind"] == "migrated") - clock
    gaps = [(before[0], after[0] - before[0]) for before, after in pairwise(steps)]
    lasts_s = ended + AFTER_S - began
    during = [gap for at, gap in gaps if began - gap <= at <= ended + AFTER_S]
    before = [gap for at, gap in gaps if began - lasts_s <= at < began - gap]
    pauses = [event["pause_ms"] for event in events if event["kind"] == "scaled" and event["pause_ms"] is not None]
    return {
        "pause_s": max(during),
        "usual_s": max(before),
        "step_s": statistics.median(gap for _, gap in gaps),
        "switch_s": max(pauses) / 1000,
        "moving_s": ended - began,
    }


def _verdict(steps: list[tuple[float, int, int, str]], account: dict[str, Any]) -> dict[str, Any]:
    epochs = account["epochs"]
    return {
        "steps": len(steps),
        "missing": sum(after[1] - before[1] - 1 for before, after in pairwise(steps)),
        "samples": sum(epoch["trained"] for epoch in epochs),
        "lost": sum(epoch["lost"] for epoch in epochs),
        "repeated": sum(epoch["repeated"] for epoch in epochs),
        "clean": account["clean"],
        "hosts": sorted({host for *_, host in steps}),
    }


FIGURES = ("pause_s", "usual_s", "step_s", "switch_s", "moving_s", "asked_s")


def row(mb: int, rounds: list[dict[str, Any]]) -> str:
    cells = []
    for name in FIGURES:
        values = [one[name] for one in rounds]
        scale, unit = (1, "s") if name in ("moving_s", "asked_s") else (1000, "ms")
        digits = 1 if unit == "s" else 0
        cells.append(f"{scale * statistics.median(values):.{digits}f} ({scale * max(values):.{digits}f}) {unit}")
    return f"{mb:>4} MB  " + "  ".join(f"{cell:>18}" for cell in cells)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soaks.migrate", description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=int, nargs="+", default=[10, 100], help="of state (default: 10 100)")
    parser.add_argument("--rounds", type=int, default=3, help="jobs for each size (default: 3)")
    parser.add_argument("--json", action="store_true", help="print figures for programs")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no host stays behind
    if reason := why_no_wires():
        parser.error(f"there can be no hosts here: {reason}")
    found: dict[int, list[dict[str, Any]]] = {}
    load = [os.getloadavg()[0]]
    for mb in options.mb:
        for _ in range(options.rounds):
            found.setdefault(mb, []).append(move(mb))
            load.append(os.getloadavg()[0])
            print(f"{mb} MB: {json.dumps(found[mb][-1])}, load {load[-1]:.0f}", file=sys.stderr, flush=True)
    every = [one for rounds in found.values() for one in rounds]
    lost, missing = sum(one["lost"] + one["repeated"] for one in every), sum(one["missing"] for one in every)
    good = all(one["clean"] for one in every) and not lost and not missing
    slow = GOAL_MB in found and statistics.median(one["pause_s"] for one in found[GOAL_MB]) > GOAL_S
    if options.json:
        print(json.dumps({"load": load, "rounds": found}))
    else:
        print("         " + "  ".join(f"{name.removesuffix('_s'):>18}" for name in FIGURES))
        print("\n".join(row(mb, rounds) for mb, rounds in found.items()))
        samples, steps = (sum(one[what] for one in every) for what in ("samples", "steps"))
        print(f"{samples} samples: {lost} lost or repeated; {missing} of {steps} steps missing")
        print(f"load {min(load):.0f} to {max(load):.0f}; goal {GOAL_S * 1000:.0f} ms at {GOAL_MB} MB")
    return 0 if good and not slow else 1


if __name__ == "__main__":
    sys.exit(main())
