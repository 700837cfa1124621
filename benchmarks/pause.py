"""What a change of size costs those who stay: edl beside stock Horovod elastic, the same model in the same run.

    python -m benchmarks.pause [--changes 2-3 3-2 1-4 4-1] [--frameworks torch tensorflow] [--modes edl stock]
                               [--ring horovod] [--step-ms 20] [--state-mb 0] [--rounds 1] [--back] [--json]

For each change: start that many workers, let them train, ask for the other size (`edl scale`; Horovod's host discovery
script), wait until all survivors train at it. A survivor's pause is its time between the ends of its last step at one
size and its first at the other, less its median step; printed is that of the survivor that lost most, as the median of
the rounds and the longest of them, of edl's jobs with its parts:

    leave       the old ring
    rendezvous  until the last member of the new one has come
    connect     from then on until all sit in the ring
    prepare     how long that one took to form beside the old one, where it did; no part of the pause
    state       agree on the newest step, and move the state to newcomers
    first step  what the first mini-batch in the new ring takes beyond the median; longest step: of the first 60 the one
                that takes most; together: all of these, as a state comes over several, less what as many take beyond
                their median before the change

`boot` is the survivors' median step while newcomers start, import, build and rehearse on the same cores, as a ratio to
the median before. With --state-mb the model carries so much more state, and `broadcast` is what a broadcast of just
that takes in the new ring (median of 5): what a pause should be compared to.

With --back all rounds are made in one job of each kind, whose size goes there and back in turns; both ways are printed.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.pause_worker import APART, DEVICE

PATIENCE_S = 300.0
BEFORE_STEPS, AFTER_STEPS = 60, 60
STEADY_STEPS = 40  # of those before: the first ones take longer
END_S = 30.0


def program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def wait(true: Callable[[], Any], what: str, job: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        if job.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"never: {what} (exit {job.poll()}); the last lines:\n{log.read_text()[-2000:]}")
        time.sleep(0.1)


class Options(argparse.Namespace):
    changes: list[str]
    frameworks: list[str]
    modes: list[str]
    ring: str
    step_ms: float
    state_mb: int
    rounds: int
    back: bool
    device: str
    apart: bool
    json: bool


@dataclass
class Worker:
    """What one worker has noted."""

    steps: list[tuple[float, int]] = field(default_factory=list)  # when it ended, in a ring of what size
    entered: list[tuple[float, float, int]] = field(default_factory=list)  # began, ended, size
    prepared: list[tuple[float, float, int]] = field(default_factory=list)  # the same of rings beside the present one
    broadcasts: list[float] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Worker:
        worker = cls()
        for line in path.read_text().splitlines(keepends=True):
            kind, *numbers = line.split()
            if not line.endswith("\n"):
                break
            match kind:
                case "step":
                    worker.steps.append((float(numbers[0]), int(numbers[1])))
                case "enter":
                    worker.entered.append((float(numbers[0]), float(numbers[1]), int(numbers[2])))
                case "prepare":
                    worker.prepared.append((float(numbers[0]), float(numbers[1]), int(numbers[2])))
                case _:
                    worker.broadcasts.append(float(numbers[0]))
        return worker

    @property
    def changed(self) -> int:
        """Which step was the first in a ring of the newest size."""
        sizes = [size for _, size in self.steps]
        return max(at for at, size in enumerate(sizes) if size != sizes[-1]) + 1

    @property
    def gaps(self) -> list[tuple[float, float]]:
        """End and length of each step but the first."""
        return [(later, later - earlier) for (earlier, _), (later, _) in itertools.pairwise(self.steps)]


class Run:
    """One job of one kind, in a folder of its own."""

    def __init__(self, mode: str, framework: str, folder: Path, change: tuple[int, int], options: Options) -> None:
        self.mode, self.framework, self.folder = mode, framework, folder
        self.before, self.after = change
        self.state_mb, self.step_ms, self.ring = options.state_mb, options.step_ms, options.ring
        self.log = folder / "output.log"
        self._device = {DEVICE: options.device, APART: "1" if options.apart else ""}

    def measure(self) -> dict[str, float]:
        return self.measure_both(1, back=False)[0][0]

    def measure_both(self, times: int, *, back: bool) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
        """So many changes; and each time the one back, if that is wanted."""
        with self.log.open("wb") as log:
            job = self._start(log)
            there, again = list[dict[str, float]](), list[dict[str, float]]()
            try:
                wait(lambda: self._training(self.before, BEFORE_STEPS), f"{self.before} workers", job, self.log)
                for _ in range(times):
                    there.append(self._resize(job, self.before, self.after))
                    if back:
                        again.append(self._resize(job, self.after, self.before))
                return there, again
            finally:
                self._stop(job)

    def _resize(self, job: subprocess.Popen[bytes], before: int, after: int) -> dict[str, float]:
        workers = {path: Worker.read(path) for path in self.folder.glob("*.steps")}
        survivors = {path for path, worker in workers.items() if worker.steps and worker.steps[-1][1] == before}
        asked = time.time()
        self._ask(after)
        wait(lambda: self._training(after, AFTER_STEPS, asked), f"{after} workers", job, self.log)
        if self.mode == "edl" and self.state_mb and not any(worker.broadcasts for worker in workers.values()):
            self._set("broadcast", self._step() + 25)
            wait(lambda: all(Worker.read(path).broadcasts for path in survivors), "broadcasts", job, self.log)
        read = [Worker.read(path) for path in survivors]
        result = figures([worker for worker in read if worker.steps[-1][1] == after], asked)
        return {**result, **(self._parts(asked, survivors, after) if self.mode == "edl" else {})}

    def _training(self, size: int, steps: int, since: float = 0.0) -> bool:
        """All of so many workers have made so many steps at that size, all of them since then."""
        made = [Worker.read(path).steps[-steps:] for path in self.folder.glob("*.steps")]
        return sum(len(last) == steps and all(at == size and end > since for end, at in last) for last in made) >= size

    def _start(self, log: Any) -> subprocess.Popen[bytes]:
        worker = [sys.executable, "-m", "benchmarks.pause_worker", self.mode, self.framework, str(self.folder)]
        worker += ["--ballast-mb", str(self.state_mb), "--step-ms", str(self.step_ms)]
        if self.mode == "edl":
            command = [program("edl"), "run", "-np", str(self.before), "--job", "pause"]
            command += [*(["--ring", self.ring] if self.framework == "torch" else []), *worker]
        else:
            self._hosts(self.before)
            script = self.folder / "hosts.sh"
            script.write_text(f"#!/bin/sh\ncat {self.folder}/hosts\n")
            script.chmod(0o755)
            limits = ["-np", str(self.before), "--min-np", "1", "--max-np", "32", "--network-interface", "lo"]
            command = [program("horovodrun"), *limits, "--host-discovery-script", str(script), *worker]
        environ = {**os.environ, **self._device, "EDL_HOME": str(self.folder / "home"), "TF_CPP_MIN_LOG_LEVEL": "3"}
        environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _stop(self, job: subprocess.Popen[bytes]) -> None:
        self._set("stop", self._step() + 50 if self.mode == "edl" else 0)
        try:
            job.wait(END_S)
        except subprocess.TimeoutExpired:
            job.terminate()
            job.wait(END_S)

    def _set(self, name: str, step: int) -> None:
        """All workers do something after the same step."""
        working = self.folder / f"{name}.new"
        working.write_text(str(step))
        working.rename(self.folder / name)

    def _hosts(self, slots: int) -> None:
        working = self.folder / "hosts.new"
        working.write_text(f"localhost:{slots}\n")
        working.rename(self.folder / "hosts")

    def _ask(self, size: int) -> None:
        if self.mode == "stock":
            self._hosts(size)
        else:
            self._edl("scale", "pause", str(size))

    def _edl(self, *arguments: str) -> str:
        environ = {**os.environ, "EDL_HOME": str(self.folder / "home")}
        done = subprocess.run([program("edl"), *arguments], env=environ, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        return done.stdout

    def _step(self) -> int:
        status = json.loads(self._edl("status", "pause", "--json"))
        return int(status["step"])

    def _parts(self, asked: float, survivors: set[Path], size: int) -> dict[str, float]:
        """Of the last change; in milliseconds."""
        events = [json.loads(line) for line in self._edl("events", "pause", "--json").splitlines()]
        scaled = next(event for event in reversed(events) if event["kind"] == "scaled")
        workers = {path: Worker.read(path) for path in self.folder.glob("*.steps")}
        entering = {
            path: worker.entered[-1]
            for path, worker in workers.items()
            if worker.entered and worker.entered[-1][0] > asked and worker.entered[-1][2] == size
        }
        first_came = min(began for path, (began, _, _) in entering.items() if path in survivors)
        last_came = max(began for began, _, _ in entering.values())
        stands = max(ended for _, ended, _ in entering.values())
        found = {
            "leave": scaled["leave_ms"],
            "rendezvous": 1000 * (last_came - first_came),
            "connect": 1000 * (stands - last_came),
            "state": scaled["state_ms"],
        }
        prepared = [one for worker in workers.values() for one in worker.prepared[-1:] if one[0] > asked]
        if prepared:
            found["prepare"] = 1000 * max(ended - began for began, ended, _ in prepared)
        if broadcasts := [seconds for worker in workers.values() for seconds in worker.broadcasts]:
            found["broadcast"] = 1000 * statistics.median(broadcasts)
        return found


def figures(survivors: list[Worker], asked: float) -> dict[str, float]:
    """Of the survivor that lost most; in milliseconds, but for the ratio `boot`."""
    found = []
    for worker in survivors:
        earlier = [gap for end, gap in worker.gaps if end < asked][-BEFORE_STEPS:]
        before = statistics.median(earlier)
        (changed_at, pause), *later = worker.gaps[worker.changed - 1 :]
        booting = [gap for end, gap in worker.gaps if asked < end < changed_at]
        after = [gap for _, gap in later[:AFTER_STEPS]]
        beyond = [gap - statistics.median(after) for gap in after]
        usual = [gap - before for gap in earlier[-STEADY_STEPS:]]
        found.append(
            {
                "pause": 1000 * (pause - before),
                "first step": 1000 * beyond[0],
                "longest step": 1000 * max(beyond),
                "together": 1000 * (sum(beyond) - sum(usual) * len(beyond) / len(usual)),
                "boot": statistics.median(booting) / before if booting else 1.0,
                "step": 1000 * before,
            }
        )
    return max(found, key=lambda one: one["pause"])


def medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    found = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
    return {**found, "longest": max(one["pause"] for one in rounds)}


PARTS = (
    "leave",
    "rendezvous",
    "connect",
    "state",
    "first step",
    "longest step",
    "together",
    "prepare",
    "broadcast",
)


def shown(framework: str, change: tuple[int, int], found: dict[str, dict[str, float]]) -> str:
    line = f"{framework:<10} {change[0]:>2} -> {change[1]:<2} "
    pauses = ((mode, result["pause"], result["longest"]) for mode, result in found.items())
    line += "  ".join(f"{mode} {median:.0f} ms (longest {longest:.0f})" for mode, median, longest in pauses)
    if len(found) > 1:
        line += f"  ({found['stock']['pause'] / found['edl']['pause']:.0f} times)"
    if ours := found.get("edl"):
        parts = ", ".join(f"{name} {ours[name]:.0f}" for name in PARTS if name in ours)
        line += f"  edl: {parts}; steps {ours['step']:.0f} ms"
        if change[1] > change[0]:
            line += f", while newcomers boot x {ours['boot']:.2f}"
    return line


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changes", nargs="+", default=["2-3", "3-2", "1-4", "4-1"])
    parser.add_argument("--frameworks", nargs="+", default=["torch", "tensorflow"])
    parser.add_argument("--modes", nargs="+", default=["edl", "stock"])
    parser.add_argument("--ring", choices=["horovod", "torch"], default="horovod", help="of edl's jobs in PyTorch")
    parser.add_argument("--step-ms", type=float, default=20.0, help="what a step takes at least")
    parser.add_argument("--state-mb", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=1, help="medians of so many jobs of each kind")
    parser.add_argument("--back", action="store_true", help="all rounds in one job, there and back in turns")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="of PyTorch's models")
    parser.add_argument("--apart", action="store_true", help="workers share a GPU as if each were of another host")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(namespace=Options())
    for framework, change in itertools.product(options.frameworks, options.changes):
        before, after = (int(part) for part in change.split("-"))
        jobs, times = (1, options.rounds) if options.back else (options.rounds, 1)
        there: dict[str, list[dict[str, float]]] = {mode: [] for mode in options.modes}
        again: dict[str, list[dict[str, float]]] = {mode: [] for mode in options.modes}
        for _, mode in itertools.product(range(jobs), options.modes):
            with tempfile.TemporaryDirectory() as folder:
                run = Run(mode, framework, Path(folder), (before, after), options)
                both = run.measure_both(times, back=options.back)
                there[mode] += both[0]
                again[mode] += both[1]
        tell(framework, (before, after), there, as_json=options.json)
        if options.back:
            tell(framework, (after, before), again, as_json=options.json)
    return 0


def tell(framework: str, change: tuple[int, int], rounds: dict[str, list[dict[str, float]]], *, as_json: bool) -> None:
    found = {mode: medians(results) for mode, results in rounds.items()}
    if as_json:
        print(json.dumps({"framework": framework, "from": change[0], "to": change[1], **found}), flush=True)
    else:
        print(shown(framework, change, found), flush=True)


if __name__ == "__main__":
    sys.exit(main())
