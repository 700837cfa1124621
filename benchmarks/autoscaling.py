"""Does a job find its size, and get rid of who holds it up? Published curves replayed, then real jobs.

    python -m benchmarks.autoscaling [--parts replay decide knee straggler] [--minutes 10] [--json]

    replay     the throughput that Or, Zhang and Freedman (MLSys 2020) have published, fed to the search from each start
    decide     how long a decision takes with the figures of a thousand workers
    knee       a job of up to four workers, whose steps are slept so that a fourth adds nothing: where does it settle,
               and does it stay there for so many minutes?
    straggler  one of three workers at half its speed, from some moment on: who is replaced, and the throughput before,
               with it and after

Exit code 1 if a search settles elsewhere than theirs did or in more moves, a job at another size than the knee or
moves again, the wrong worker is replaced, or less than 95 % of the throughput comes back.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edl import client
from edl.errors import EdlError
from edl.events import Event, Kind
from edl.policy.efficiency import Efficiency, Search
from edl.policy.policy_engine import Engine, Pacing
from edl.policy.policy_job_view import View, WorkerView
from edl.policy.stragglers import Spent, WorkerPaces
from edl.protocol.record import Status
from edl.protocol.tally import Rate

# Seconds for the whole job with so many workers all the time, and samples in it; where theirs settled; their stride.
PUBLISHED = {
    "CIFAR-10": ({4: 1171, 8: 1216, 12: 1305, 16: 1303, 20: 1410, 24: 1408}, 200 * 50_000, 4, 4),
    "ImageNet": ({32: 4550, 40: 3638, 48: 3070, 56: 2742, 64: 2357}, 5 * 1_281_167, 64, 8),
}
KNEE, KNEE_S = 3, {"1": 0.2, "2": 0.2, "3": 0.205, "4": 0.3}
WORKER = str(Path(__file__).with_name("autoscaling_worker.py"))
PATIENCE_S = 300.0


def replay() -> list[dict[str, Any]]:
    rows = []
    for task, (seconds, samples, settled, stride) in PUBLISHED.items():
        for start in seconds:
            path = _path(seconds, samples, start, stride)
            rows.append({"task": task, "start": start, "path": path, "moves": len(path) - 1, "theirs": settled})
    return rows


def _path(seconds: dict[int, int], samples: int, start: int, stride: int) -> list[int]:
    search, path = Search(Efficiency(0.1), stride), [start]
    while True:
        rates = tuple(Rate(size, 100, samples, seconds[size]) for size in sorted(set(path)))
        least, most = min(seconds), max(seconds)
        decided = search.decide(View(now=0.0, step=1, size=path[-1], rates=rates, minimum=least, maximum=most))
        if decided.size == path[-1]:
            return path
        path.append(decided.size)


def decide(workers: int = 1000, times: int = 200) -> dict[str, float]:
    """Milliseconds of CPU: the figures of all workers taken, judged, and the job's policy asked."""
    spent = [Spent(f"w{n}", f"h{n // 8}", 0.1 + 0.0001 * (n % 7), 0.0, 0.01) for n in range(workers)]
    views = tuple(WorkerView(id=f"w{n}", rank=n, host=f"h{n // 8}") for n in range(workers))
    rates = tuple(Rate(size, 100, 1000 * size, 10.0) for size in range(workers // 20, workers + 1, workers // 20))
    view = View(now=0.0, step=1, size=workers, minimum=1, maximum=workers, rates=rates, workers=views)
    paces, taking, asking = WorkerPaces(), [], []
    for _ in range(times):
        began = time.process_time()
        paces.take(spent, 10)
        straggler = paces.verdict()
        between = time.process_time()
        engine = Engine(Search(Efficiency(0.1)), Pacing(every=1, looks=1, cooldown_s=0.0))
        engine.look(view, straggler)
        asking.append(1000 * (time.process_time() - between))
        taking.append(1000 * (between - began))
    return {"paces_ms": statistics.median(taking), "policy_ms": statistics.median(asking)}


class Live:
    """One job of `edl run` that chooses for itself."""

    def __init__(self, *flags: str, worker: tuple[str, ...]) -> None:
        self.name = f"autoscaling-{int(time.time()) % 100_000}"
        self._log = tempfile.NamedTemporaryFile(prefix="edl-autoscaling-", suffix=".log", delete=False)  # noqa: SIM115
        command = [str(Path(sys.executable).with_name("edl"))]
        self._process = subprocess.Popen(
            [*command, "run", "--job", self.name, *flags, sys.executable, WORKER, *worker],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )

    def status(self) -> Status | None:
        try:
            with client.Job(self.name) as job:
                return job.status()
        except EdlError:  # not begun yet
            return None

    def decisions(self) -> list[Event]:
        try:
            with client.Job(self.name) as job:
                return [event for event in job.events() if event.kind is Kind.DECISION]
        except EdlError:
            return []

    def wait(self, done: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> None:
        until = time.monotonic() + patience_s
        while not done():
            if self._process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"never: {what} (exit {self._process.poll()}); see {self._log.name}")
            time.sleep(0.5)

    def throughput(self, seconds: float) -> float:
        """Samples a second, measured by two looks."""
        looks = []
        for _ in range(2):
            status = self.status()
            assert status is not None and status.data is not None
            looks.append((time.monotonic(), status.data.epoch * status.data.total + status.data.trained))
            time.sleep(seconds if len(looks) == 1 else 0)
        (began, before), (ended, after) = looks
        return (after - before) / (ended - began)

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(60)


def knee(minutes: float) -> dict[str, Any]:
    flags = ("-np", "1", "--max-np", "4", "--autoscale", "efficiency=0.1,batches=40", "--autoscale-every", "10")
    live = Live(*flags, worker=("--step-s", json.dumps(KNEE_S)))
    try:
        began = time.monotonic()
        live.wait(lambda: any(not told.details["act"] for told in live.decisions()), "it settles")
        settled_s, moves = time.monotonic() - began, [told.details["size"] for told in live.decisions()]
        time.sleep(60 * minutes)
        status = live.status()
        assert status is not None
        return {
            "path": [1, *moves[:-1]],
            "settled_s": settled_s,
            "size": status.size,
            "moves_after": len([told for told in live.decisions() if told.details["act"]]) - len(moves) + 1,
            "minutes": minutes,
            "rates": {rate.size: rate.samples_s for rate in status.rates},
            "reason": status.ruling,
        }
    finally:
        live.end()


def straggler() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        mark = Path(folder) / "slow"
        slow = ("--slow-slot", "1", "--slow-s", "0.1", "--slow-while", str(mark))
        worker = ("--step-s", '{"1": 0.1, "2": 0.1, "3": 0.1, "4": 0.1}', *slow)
        live = Live("-np", "3", "--max-np", "4", "--stragglers", "replace", worker=worker)
        try:
            live.wait(lambda: (status := live.status()) is not None and status.step > 100, "three train")
            free = live.throughput(15.0)
            mark.touch()
            began = time.monotonic()
            time.sleep(2.0)
            held = live.throughput(3.0)
            live.wait(live.decisions, "a worker is found slow")
            found_s = time.monotonic() - began
            (told,) = live.decisions()
            gone = told.details["replace"][0]

            def replaced() -> bool:
                status = live.status()
                there = {one.id for one in status.workers} if status is not None else {gone}
                return status is not None and status.size == status.target == 3 and gone not in there

            live.wait(replaced, "another one is there in its place")
            replaced_s = time.monotonic() - began
            time.sleep(2.0)
            after = live.throughput(15.0)
            return {
                "free": free,
                "held": held,
                "after": after,
                "ratio": after / free,
                "found_s": found_s,
                "replaced_s": replaced_s,
                "reason": told.details["reason"],
                "replaced": len(live.decisions()),
            }
        finally:
            live.end()


def show(found: dict[str, Any]) -> None:
    for row in found.get("replay", []):
        print(f"{row['task']:<9} from {row['start']:>2}: {' -> '.join(map(str, row['path']))} ({row['moves']} moves)")
    if cost := found.get("decide"):
        print(f"1,000 workers: paces {cost['paces_ms']:.2f} ms, policy {cost['policy_ms']:.2f} ms (medians)")
    if one := found.get("knee"):
        rates = ", ".join(f"{size}: {rate:.1f}" for size, rate in one["rates"].items())
        print(f"knee: {' -> '.join(map(str, one['path']))}, settled after {one['settled_s']:.0f} s; samples/s {rates}")
        print(f"  {one['moves_after']} moves in the {one['minutes']:g} minutes after it; size {one['size']}")
        print(f"  {one['reason']}")
    if one := found.get("straggler"):
        print(
            f"straggler: {one['free']:.1f} samples/s without, {one['held']:.1f} with it, {one['after']:.1f} after "
            f"({100 * one['ratio']:.1f} %); found after {one['found_s']:.0f} s, gone after {one['replaced_s']:.0f} s"
        )
        print(f"  {one['reason']}")


def sound(found: dict[str, Any]) -> bool:
    good = all(row["path"][-1] == row["theirs"] for row in found.get("replay", []))
    if one := found.get("knee"):
        good &= one["size"] == KNEE and one["moves_after"] == 0
    if one := found.get("straggler"):
        good &= one["ratio"] >= 0.95 and one["replaced"] == 1
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts: dict[str, Callable[[], Any]] = {"replay": replay, "decide": decide, "straggler": straggler}
    parser.add_argument("--parts", nargs="+", default=[*parts, "knee"], choices=[*parts, "knee"])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    parts["knee"] = lambda: knee(options.minutes)
    found = {name: parts[name]() for name in options.parts}
    if options.json:
        print(json.dumps(found))
    else:
        show(found)
    return 0 if sound(found) else 1


if __name__ == "__main__":
    sys.exit(main())
