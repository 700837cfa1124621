"""What a change of size costs those who stay: edl beside stock Horovod elastic, the same model in the same run.

    python -m benchmarks.pause [--changes 2-3 3-2 1-4 4-1] [--json]

For each change: start that many workers, let them train, ask for the other size (`edl scale`; Horovod's host discovery
script), wait until all survivors train at it. A survivor's pause is its longest time between two ends of steps around
the change, less its median step; printed is the longest of all survivors. edl's own events have the parts.
"""

from __future__ import annotations

import argparse
import itertools
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

WORKER = [sys.executable, "-m", "benchmarks.pause_worker"]
PATIENCE_S = 180.0
BEFORE_STEPS, AFTER_STEPS = 60, 60


def program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def steps_of(path: Path) -> list[tuple[float, int]]:
    lines = (line.split() for line in path.read_text().splitlines(keepends=True) if line.endswith("\n"))
    return [(float(at), int(size)) for at, size in lines]


def wait(true: Callable[[], bool], what: str, job: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        if job.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"never: {what} (exit {job.poll()})")
        time.sleep(0.1)


def longest_pause_ms(steps: list[tuple[float, int]], asked: float) -> float:
    ends = [at for at, _ in steps]
    gaps = [later - earlier for earlier, later in itertools.pairwise(ends)]
    around = [gap for gap, end in zip(gaps, ends[1:], strict=True) if end > asked]
    return 1000 * (max(around) - statistics.median(gaps))


class Run:
    """One job of one kind, in a folder of its own."""

    def __init__(self, mode: str, folder: Path, before: int, after: int) -> None:
        self.mode, self.folder, self.before, self.after = mode, folder, before, after
        self.log = (folder / "output.log").open("wb")

    def measure(self) -> dict[str, Any]:
        job = self._start()
        try:
            wait(lambda: self._training(self.before, BEFORE_STEPS, self.before), f"{self.before} workers", job)
            survivors = set(self.folder.glob("*.steps"))
            asked = time.time()
            self._ask()
            wait(lambda: self._training(self.after, AFTER_STEPS, self.after), f"{self.after} workers", job)
            stayed = [steps_of(path) for path in survivors if steps_of(path)[-1][1] == self.after]
            return {"pause_ms": max(longest_pause_ms(steps, asked) for steps in stayed), **self._parts()}
        finally:
            (self.folder / "stop").touch()
            try:
                job.wait(20)
            except subprocess.TimeoutExpired:
                job.terminate()
                job.wait(20)
            self.log.close()

    def _training(self, size: int, steps: int, workers: int) -> bool:
        """So many workers have made so many steps at that size."""
        counts = [sum(at == size for _, at in steps_of(path)[-steps:]) for path in self.folder.glob("*.steps")]
        return sum(count >= steps for count in counts) >= workers

    def _start(self) -> subprocess.Popen[bytes]:
        worker = [*WORKER, self.mode, str(self.folder)]
        if self.mode == "edl":
            command = [program("edl"), "run", "-np", str(self.before), "--job", "pause", *worker]
        else:
            self._hosts(self.before)
            script = self.folder / "hosts.sh"
            script.write_text(f"#!/bin/sh\ncat {self.folder}/hosts\n")
            script.chmod(0o755)
            limits = ["-np", str(self.before), "--min-np", "1", "--max-np", "8", "--network-interface", "lo"]
            command = [program("horovodrun"), *limits, "--host-discovery-script", str(script), *worker]
        environ = {**os.environ, "EDL_HOME": str(self.folder / "home"), "TF_CPP_MIN_LOG_LEVEL": "3"}
        environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)

    def _hosts(self, slots: int) -> None:
        draft = self.folder / "hosts.new"
        draft.write_text(f"localhost:{slots}\n")
        draft.rename(self.folder / "hosts")

    def _ask(self) -> None:
        if self.mode == "stock":
            self._hosts(self.after)
        else:
            self._edl("scale", "pause", str(self.after))

    def _edl(self, *arguments: str) -> str:
        environ = {**os.environ, "EDL_HOME": str(self.folder / "home")}
        done = subprocess.run([program("edl"), *arguments], env=environ, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        return done.stdout

    def _parts(self) -> dict[str, Any]:
        if self.mode == "stock":
            return {}
        events = [json.loads(line) for line in self._edl("events", "pause", "--json").splitlines()]
        scaled = [event for event in events if event["kind"] == "scaled"]
        return {name: max(event[f"{name}_ms"] for event in scaled) for name in ("leave", "enter", "state")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changes", nargs="+", default=["2-3", "3-2", "1-4", "4-1"])
    parser.add_argument("--modes", nargs="+", default=["edl", "stock"])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    for change in options.changes:
        before, after = (int(part) for part in change.split("-"))
        result: dict[str, Any] = {"before": before, "after": after}
        for mode in options.modes:
            with tempfile.TemporaryDirectory() as folder:
                result[mode] = Run(mode, Path(folder), before, after).measure()
        if options.json:
            print(json.dumps(result), flush=True)
            continue
        ours = result.get("edl", {})
        parts = ", ".join(f"{name} {ours[name]:.0f}" for name in ("leave", "enter", "state") if name in ours)
        line = f"{before} -> {after}: " + "  ".join(f"{m} {result[m]['pause_ms']:.0f} ms" for m in options.modes)
        if {"edl", "stock"} <= result.keys():
            line += f"  stock / edl {result['stock']['pause_ms'] / max(ours['pause_ms'], 1.0):.0f}"
        print(f"{line}  (edl: {parts})", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
