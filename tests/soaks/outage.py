"""ZooKeeper, or etcd, is away for a while: does training go on, and what becomes of a scaling asked for meanwhile?

    python -m tests.soaks.outage [--seconds 30] [--cases frozen killed] [--session-timeouts 40 10] [--workers 2]
                                [--epochs "at once"] [--coordinator etcd] [--json]

A job of `edl run` with a coordinator that the benchmark controls: it is frozen (SIGSTOP) and goes on, or is killed and
started again with its data. In the outage `edl scale` asks for one worker more. Workers hold leases for one to two
session time-outs' worth of steps (they are granted two ahead, when half is used up), so one that is longer than the
outage is needed for them to last: the first of `--session-timeouts`. The second, the default of edl, shows what a too
short one costs. Figures:

    before, during   steps a second of each worker, for as long before as the outage lasts, and while it lasts
    gap              the longest time between two steps since the outage began, up to the scaling, less a median step
    asked            how long `edl scale` took, and how it ended
    scaled           from the outage's end until the size that was asked for trains

Exit code 1 if a worker was lost, a mini-batch void, the scaling not carried out, the job's end or its audit not clean,
or, where the session time-out is longer than the outage, less than 95 % of the steps made. The script asks for all
its epochs at once; with `--epochs "one by one"` for another one whenever one has ended, for which a leader must be
there.
"""

from __future__ import annotations

import argparse
import asyncio
import bisect
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import DigitsJob, EventWatch
from edl.coordination.etcd.etcd_server import LocalEtcd
from edl.coordination.zookeeper_server import LocalServer
from edl.events import Kind

STEP_S = 0.02
EPOCHS = {"at once": ("--epochs", "1000000"), "one by one": ()}
ASK_AFTER_S = 5.0
PATIENCE_S = 120.0
GOAL = 0.95

Found = dict[str, Any]


class Outage:
    """Of a server of one's own."""

    def __init__(self, case: str, server: LocalServer | LocalEtcd) -> None:
        self._frozen = case == "frozen"
        self._server = server

    def begin(self) -> None:
        if self._frozen:
            self._server.signal(signal.SIGSTOP)
        else:
            self._server.signal(signal.SIGKILL)
            asyncio.run(self._server.wait_exit())

    def end(self) -> None:
        if self._frozen:
            self._server.signal(signal.SIGCONT)
        else:
            asyncio.run(self._server.restart())


@dataclass
class Asked:
    """`edl scale` as a user types it."""

    process: subprocess.Popen[str]
    began: float

    def told(self) -> tuple[float, int, str]:
        """How long it took, its exit code and its words."""
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return time.monotonic() - self.began, self.process.returncode, " ".join(f"{out} {err}".split())


async def _started(kind: str, folder: Path) -> LocalServer | LocalEtcd:
    return await LocalEtcd.start(folder) if kind == "etcd" else await LocalServer.start(folder)


def measured(case: str, session_s: float, asked: str, options: argparse.Namespace) -> Found:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server = asyncio.run(_started(options.coordinator, folder / "coordinator"))
        flags = ("--coordinator", server.coordinator.hosts, "--session-timeout", f"{session_s:g}")
        job = DigitsJob("torch", folder, options.workers, STEP_S, *EPOCHS[asked], flags=flags)
        try:
            job.wait_training()
            with EventWatch(job.name, str(folder / "home")) as watch:
                found = _struck(job, Outage(case, server), watch, options)
            job.break_off()
        finally:
            job.launcher.terminate()  # all that it has started ends with it
            job.launcher.wait()
            asyncio.run(server.stop())
        data = harness.audited(folder / "audit")
        found |= _rates(job, **found.pop("moments"))
    return {
        "coordinator": options.coordinator,
        "case": case,
        "session_timeout_s": session_s,
        "outage_s": options.seconds,
        **found,
        "epochs": data["epochs"],
        "lost_samples": data["lost"],
        "repeated": data["repeated"],
        "wrong": data["wrong"],
    }


def _struck(job: DigitsJob, outage: Outage, watch: EventWatch, options: argparse.Namespace) -> Found:
    wanted = options.workers + 1
    _pass(
        job, 2 * options.seconds
    )  # half of it as the rate before; in the other half leases have become as long as asked
    began, heard = time.monotonic(), len(watch.heard)
    outage.begin()
    _pass(job, min(ASK_AFTER_S, options.seconds / 2))
    command = [str(Path(sys.executable).with_name("edl")), "scale", job.name, str(wanted)]
    pipe = subprocess.PIPE
    asked = Asked(subprocess.Popen(command, env=job.environ, stdout=pipe, stderr=pipe, text=True), time.monotonic())
    _pass(job, began + options.seconds - time.monotonic())
    ended, wall = time.monotonic(), time.time()
    outage.end()
    took_s, code, words = asked.told()
    done = None
    if not code:
        done = watch.wait(lambda e: e.kind is Kind.SCALED and e.details["to"] == wanted, heard, PATIENCE_S)
    else:
        watch.wait_kind(Kind.LEADER_ELECTED, heard, PATIENCE_S)
    _pass(job, 3.0)
    story = watch.heard[heard:]
    return {
        "moments": {"began": began, "ended": ended, "until": time.monotonic(), "seconds": options.seconds},
        "scale_took_s": took_s,
        "scale_code": code,
        "scale_said": words,
        "scaled_s": None if done is None else done.ts - wall,
        "leaders": sum(event.kind is Kind.LEADER_ELECTED for event in story),
        "lost": sum(event.kind is Kind.WORKER_LOST for event in story),
        "why": [event.details["reason"] for event in story if event.kind is Kind.WORKER_LOST],
        "void": sum(event.kind is Kind.BATCH_VOIDED for event in story),
    }


def _pass(job: DigitsJob, seconds: float) -> None:
    """Let so much time pass, while the job lives."""
    try:
        job.launcher.wait(max(0.0, seconds))
    except subprocess.TimeoutExpired:
        return
    raise SystemExit(f"the job has ended\n{job.log()}")


def _rates(job: DigitsJob, began: float, ended: float, until: float, seconds: float) -> Found:
    """Of those who were there before."""
    ends = [ends for ends in job.ends_of_steps().values() if ends and ends[0] < began - seconds]
    before = statistics.mean(_between(steps, began - seconds, began) / seconds for steps in ends)
    during = statistics.mean(_between(steps, began, ended) / (ended - began) for steps in ends)
    gaps = [(later - one, one) for steps in ends for one, later in itertools.pairwise(steps)]
    median = statistics.median(gap for gap, _ in gaps)
    longest, at = max((gap, at) for gap, at in gaps if began < at + gap and at < until)
    return {"before": before, "during": during, "gap_ms": 1000 * (longest - median), "gap_at_s": at - began}


def _between(steps: list[float], begin: float, end: float) -> int:
    return bisect.bisect(steps, end) - bisect.bisect(steps, begin)


def is_sound(found: Found) -> bool:
    lasts = found["session_timeout_s"] > found["outage_s"]
    bad = ("lost", "void", "lost_samples", "repeated", "wrong", "scale_code")
    if any(found[name] for name in bad) or found["scaled_s"] is None:
        return False
    return not lasts or found["during"] >= GOAL * found["before"]


def shown(found: Found) -> str:
    scaled = "never" if found["scaled_s"] is None else f"{found['scaled_s']:.1f} s after it"
    return (
        f"{found['coordinator']} {found['case']} for {found['outage_s']:g} s, "
        f"--session-timeout {found['session_timeout_s']:g}: "
        f"before {found['before']:.1f} steps/s, during {found['during']:.1f} "
        f"({100 * found['during'] / found['before']:.1f} %); "
        f"gap {found['gap_ms']:.0f} ms, {found['gap_at_s']:.1f} s after the outage began\n"
        f"  `edl scale` {found['scale_took_s']:.1f} s, exit {found['scale_code']}: {found['scale_said']}\n"
        f"  scaled {scaled}; {found['leaders']} new leaders, {found['lost']} workers lost, "
        f"{found['void']} void mini-batches; {found['epochs']} epochs, {found['lost_samples']} samples lost, "
        f"{found['repeated']} repeated{''.join(f'; lost: {why}' for why in found['why'])}"
    )


def main() -> int:
    parser = harness.arguments(__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--cases", nargs="+", default=["frozen", "killed"], choices=["frozen", "killed"])
    parser.add_argument("--session-timeouts", type=float, nargs="+", default=[40.0, 10.0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", default="at once", choices=EPOCHS, help="how the script asks for them")
    parser.add_argument("--coordinator", default="zookeeper", choices=["zookeeper", "etcd"])
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # by way of the ends of all that was started
    sound = True
    for session_s, case in itertools.product(options.session_timeouts, options.cases):
        found = measured(case, session_s, options.epochs, options)
        sound = sound and is_sound(found)
        print(json.dumps(found) if options.json else shown(found), flush=True)
    if not options.json:
        print("load averages: " + " ".join(f"{load:.1f}" for load in os.getloadavg()))
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
