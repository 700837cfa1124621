"""What a change of size costs those who stay: edl beside stock Horovod elastic, the same model in the same run.

    python -m benchmarks.pause [--changes 2-3 3-2 1-4 4-1] [--frameworks torch tensorflow] [--modes edl stock stream]
                               [--ring horovod] [--step-ms 20] [--state-mb 0] [--rounds 1] [--back] [--json]
                               [--launch edl horovodrun]

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

With the mode `stream` edl's job trains on an `ElasticStream`, by the same script: beside `edl`, whose samples have a
length.

With --back all rounds are made in one job of each kind, whose size goes there and back in turns; both ways are printed.
With `--launch horovodrun` edl's jobs, too, are started by plain `horovodrun`, with the line of stock Horovod, and their
audit must be clean (else exit code 1).
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import Job, edl_run, horovodrun, set_hosts, worker
from benchmarks.worker import APART, DEVICE
from edl.proof.step_figures import AFTER_STEPS, BEFORE_STEPS, Figures, pause_figures

NAME = "pause"
OURS = ("edl", "stream")


class Options(argparse.Namespace):
    changes: list[str]
    frameworks: list[str]
    modes: list[str]
    ring: str
    step_ms: float
    state_mb: int
    rounds: int
    back: bool
    launch: str
    device: str
    apart: bool
    json: bool
    keep: str | None


@dataclass
class Run:
    """One job of one kind, in a folder of its own."""

    mode: str
    framework: str
    folder: Path
    options: Options

    def start(self, workers: int) -> Job:
        options = self.options
        mode = "edl" if self.mode in OURS else "horovod"
        arguments = ["--mode", mode, "--framework", self.framework, *(["--stream"] if self.mode == "stream" else [])]
        command = worker(self.folder, *arguments, "--state-mb", options.state_mb, "--step-ms", options.step_ms)
        environ = {DEVICE: options.device, APART: "1" if options.apart else ""}
        if mode == "edl" and options.launch == "edl":
            launch = edl_run(workers, NAME, *(["--ring", options.ring] if self.framework == "torch" else []))
        else:
            launch = horovodrun(self.folder, f"localhost:{workers}", workers, 32)
            environ |= {"EDL_JOB": NAME, "EDL_AUDIT": str(self.folder / "audit")} if mode == "edl" else {}
        self.job = Job(self.folder, [*launch, *command], name=NAME, **environ)
        return self.job

    def measure(self, before: int, after: int, times: int, *, back: bool) -> tuple[list[Figures], list[Figures]]:
        """So many changes; and each time the one back, if that is wanted."""
        job = self.start(before)
        there, again = list[Figures](), list[Figures]()
        try:
            job.wait(lambda: job.trains(before, BEFORE_STEPS), f"{before} workers")
            for _ in range(times):
                there.append(self._resize(before, after))
                if back:
                    again.append(self._resize(after, before))
        finally:
            job.stop()
        if self.mode in OURS and self.options.launch == "horovodrun":
            self._judge()
        return there, again

    def _judge(self) -> None:
        audit, code = harness.audited(self.folder / "audit"), self.job.launcher.returncode
        print(f"horovodrun's exit status {code}; {audit['trained']} samples trained, {audit['lost']} lost, "
              f"{audit['repeated']} repeated", file=sys.stderr, flush=True)  # fmt: skip
        if code or audit["lost"] or audit["repeated"]:
            raise SystemExit(1)

    def ask(self, size: int) -> None:
        if self.mode in OURS and self.options.launch == "edl":
            self.job.edl("scale", NAME, str(size))
        else:
            set_hosts(self.folder, f"localhost:{size}")

    def _resize(self, before: int, after: int) -> Figures:
        job = self.job
        survivors = {pid for pid, steps in job.notes.steps().items() if steps and steps[-1]["size"] == before}
        asked = time.monotonic()
        self.ask(after)
        job.wait(lambda: job.trains(after, AFTER_STEPS, asked), f"{after} workers")
        noted = job.notes.read()
        if self.mode in OURS and self.options.state_mb and not any(one["broadcast"] for one in noted.values()):
            job.set("broadcast", job.notes.newest() + 25)
            job.wait(lambda: all(job.notes.read()[pid]["broadcast"] for pid in survivors), "broadcasts")
        stayed = [steps for pid in survivors if (steps := noted[pid]["step"])[-1]["size"] == after]
        return pause_figures(stayed, asked) | (self._parts(asked, survivors, after) if self.mode in OURS else {})

    def _parts(self, asked: float, survivors: set[int], size: int) -> Figures:
        """Of the last change; in milliseconds."""
        scaled = next(event for event in reversed(self.job.events()) if event["kind"] == "scaled")
        noted = self.job.notes.read()
        entering = {
            pid: kinds["enter"][-1]
            for pid, kinds in noted.items()
            if kinds["enter"] and kinds["enter"][-1]["began"] > asked and kinds["enter"][-1]["size"] == size
        }
        first_came = min(note["began"] for pid, note in entering.items() if pid in survivors)
        last_came = max(note["began"] for note in entering.values())
        stands = max(note["at"] for note in entering.values())
        found = {
            "leave": scaled["leave_ms"],
            "rendezvous": 1000 * (last_came - first_came),
            "connect": 1000 * (stands - last_came),
            "state": scaled["state_ms"],
        }
        prepared = [note for kinds in noted.values() for note in kinds["prepare"][-1:] if note["began"] > asked]
        if prepared:
            found["prepare"] = 1000 * max(note["at"] - note["began"] for note in prepared)
        if broadcasts := [note["seconds"] for kinds in noted.values() for note in kinds["broadcast"]]:
            found["broadcast"] = 1000 * statistics.median(broadcasts)
        return found


def summary(rounds: list[Figures]) -> Figures:
    return {**harness.medians(rounds), "longest": max(one["pause"] for one in rounds)}


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


def shown(framework: str, change: tuple[int, int], found: dict[str, Figures]) -> str:
    line = f"{framework:<10} {change[0]:>2} -> {change[1]:<2} "
    pauses = ((mode, result["pause"], result["longest"]) for mode, result in found.items())
    line += "  ".join(f"{mode} {median:.0f} ms (longest {longest:.0f})" for mode, median, longest in pauses)
    if "stock" in found and "edl" in found:
        line += f"  ({found['stock']['pause'] / found['edl']['pause']:.0f} times)"
    if ours := found.get("edl"):
        parts = ", ".join(f"{name} {ours[name]:.0f}" for name in PARTS if name in ours)
        line += f"  edl: {parts}; steps {ours['step']:.0f} ms"
        if change[1] > change[0]:
            line += f", while newcomers boot x {ours['boot']:.2f}"
    return line


def row(ring: str, change: tuple[int, int], found: dict[str, Figures]) -> dict[str, Any]:
    """As data/results has it."""
    told: dict[str, Any] = {"ring": ring, "change": f"{change[0]} → {change[1]}"}
    if ours := found.get("edl"):
        told |= {"edl: median, ms": round(ours["pause"]), "longest, ms": round(ours["longest"])}
        told |= {f"{name}, ms": round(ours[name]) for name in PARTS if name in ours}
        told |= {"boot": round(ours["boot"], 2)} if change[1] > change[0] else {}
    if stream := found.get("stream"):
        told |= {"on a stream: median, ms": round(stream["pause"]), "its longest, ms": round(stream["longest"])}
        told |= {f"its {name}, ms": round(stream[name]) for name in ("first step", "longest step")}
    if stock := found.get("stock"):
        told["stock, ms"] = round(stock["pause"])
    return told


def main() -> int:
    parser = harness.arguments(__doc__)
    parser.add_argument("--changes", nargs="+", default=["2-3", "3-2", "1-4", "4-1"])
    parser.add_argument("--frameworks", nargs="+", default=["torch", "tensorflow"])
    parser.add_argument("--modes", nargs="+", default=["edl", "stock"])
    parser.add_argument("--ring", choices=["horovod", "torch"], default="horovod", help="of edl's jobs in PyTorch")
    parser.add_argument("--step-ms", type=float, default=20.0, help="what a step takes at least")
    parser.add_argument("--state-mb", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=1, help="medians of so many jobs of each kind")
    parser.add_argument("--back", action="store_true", help="all rounds in one job, there and back in turns")
    parser.add_argument("--launch", choices=["edl", "horovodrun"], default="edl", help="what starts edl's jobs")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="of PyTorch's models")
    parser.add_argument("--apart", action="store_true", help="workers share a GPU as if each were of another host")
    options = parser.parse_args(namespace=Options())
    rows = []
    for framework, change in itertools.product(options.frameworks, options.changes):
        before, after = (int(part) for part in change.split("-"))
        jobs, times = (1, options.rounds) if options.back else (options.rounds, 1)
        there: dict[str, list[Figures]] = {mode: [] for mode in options.modes}
        again: dict[str, list[Figures]] = {mode: [] for mode in options.modes}
        for _, mode in itertools.product(range(jobs), options.modes):
            with tempfile.TemporaryDirectory() as folder:
                both = Run(mode, framework, Path(folder), options).measure(before, after, times, back=options.back)
            there[mode] += both[0]
            again[mode] += both[1]
        ways = [((before, after), there), *([((after, before), again)] if options.back else [])]
        for (one, other), rounds in ways:
            found = {mode: summary(results) for mode, results in rounds.items()}
            rows.append(row(f"{framework}, {options.ring}" if framework == "torch" else framework, (one, other), found))
            told = {"framework": framework, "from": one, "to": other, **found}
            print(json.dumps(told) if options.json else shown(framework, (one, other), found), flush=True)
    harness.keep(options.keep, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
