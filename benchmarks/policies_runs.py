"""One simulated cluster of the comparison: what it is made of, how it is played, and how what came out is kept.

What came out is kept under a name that says all of it: the run, the trace's files, the code of policies and simulator.
A run that was played is not played again, and one of other code is.
"""

from __future__ import annotations

import hashlib
import sys
import time
from functools import cache
from pathlib import Path
from typing import Final, Literal

import msgspec

from benchmarks.policies_loads import WINDOW_S, Arrivals, drawn, read_models
from edl import cluster, simulator
from edl.cluster.placement import Rule
from edl.cluster.policies import registry
from edl.cluster.views import Node
from edl.simulator.changes import read_cost
from edl.simulator.courses.epochs import Epochs
from edl.simulator.engine import ClusterSimulation, Conditions
from edl.simulator.figures import Summary, figures_of
from edl.simulator.fitting import Fitted
from edl.simulator.speeds import Truth
from edl.simulator.trace import Trace
from edl.simulator.traces.reading import read_trace

TELL_S: Final = 10.0
OF_THE_TRACE: Final = "of-the-trace"  # a parameter's value: the services of the trace's own jobs


class PlannedRun(msgspec.Struct, frozen=True):
    """`trace`: a file below the folder of traces. Else jobs are drawn, `arrivals`, with the tables of that folder."""

    policy: str
    nodes: tuple[int, int]
    trace: str = ""
    arrivals: Arrivals | None = None
    parameters: tuple[tuple[str, str], ...] = ()
    interval_s: float = 0.0
    cost: str = "30"
    speeds: Literal["", "fitted", "oracle"] = ""  # "": as `edl simulate` has it

    def __str__(self) -> str:
        drawn_jobs = self.arrivals and f"load {self.arrivals.load:g} {self.arrivals.ranges} {self.arrivals.asked}"
        more = [f"{name}={value}" for name, value in self.parameters]
        return " ".join([Path(self.trace).stem or str(drawn_jobs), self.policy, *more, f"{self.cost} s", self.speeds])


class Found(msgspec.Struct, frozen=True):
    """`in_window`: jobs that were over when no more came, where jobs are drawn."""

    run: PlannedRun
    fitted: bool
    summary: Summary
    in_window: int


class Kept:
    """What was found, in a folder: a file for each run."""

    def __init__(self, folder: Path, traces: Path) -> None:
        self._folder, self._traces = folder, traces
        folder.mkdir(parents=True, exist_ok=True)

    def find(self, run: PlannedRun) -> Found | None:
        path = self._path(run)
        return msgspec.json.decode(path.read_bytes(), type=Found) if path.is_file() else None

    def keep(self, found: Found) -> None:
        path = self._path(found.run)
        beside = path.with_suffix(".new")
        beside.write_bytes(msgspec.json.format(msgspec.json.encode(found)))
        beside.replace(path)

    def _path(self, run: PlannedRun) -> Path:
        made_of = [msgspec.json.encode(run), code(), _of_folder(self._traces)]
        return self._folder / f"{hashlib.sha256(b''.join(made_of)).hexdigest()[:24]}.json"


@cache
def code() -> bytes:
    """Of what decides and what simulates."""
    folders = [Path(package.__path__[0]) for package in (cluster, simulator)]
    files = sorted(path for folder in folders for path in folder.rglob("*.py"))
    files += sorted(Path(__file__).parent.glob("policies_loads.py"))
    return _digest(files)


@cache
def _of_folder(traces: Path) -> bytes:
    return _digest(sorted(traces.rglob("*.csv")))


def _digest(files: list[Path]) -> bytes:
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.digest()


def play(run: PlannedRun, traces: Path) -> Found:
    """Raises ConfigError."""
    trace = _jobs(run, traces)
    entry = registry.known(run.policy)
    parameters = {name: services(trace) if value == OF_THE_TRACE else value for name, value in run.parameters}
    fits = entry.sees_speed and not entry.sees_left and any(job.course.span is not None for job in trace.jobs)
    fitted = run.speeds == "fitted" or (run.speeds == "" and fits)
    count, devices = run.nodes
    conditions = Conditions(
        nodes=tuple(Node(f"node-{number}", devices) for number in range(count)),
        interval_s=run.interval_s,
        cost=read_cost(run.cost),
        placement=Rule(entry.placement),
        sees_left=entry.sees_left,
    )
    speeds = Fitted() if fitted else Truth()
    policy = registry.build(run.policy, parameters)
    outcome = ClusterSimulation(trace, policy, speeds, conditions, Teller().tell).run()
    figures = figures_of(outcome, count * devices)
    in_window = sum(job.finished is not None and job.finished <= WINDOW_S for job in figures.jobs)
    return Found(run, fitted, figures.summary, in_window)


class Teller:
    """Says how far a long run is."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def tell(self, now: float, over: int, jobs: int) -> None:
        if time.monotonic() - self._last >= TELL_S:
            self._last = time.monotonic()
            print(f"  {over} of {jobs} jobs are over after {now:.0f} s of simulated time", file=sys.stderr, flush=True)


def services(trace: Trace) -> str:
    """Device-seconds of each job with what its owner asked for."""
    found = []
    for job in trace.jobs:
        step = job.course.step((job.request,), job.batch)
        found.append(job.request * step.seconds * job.course.steps(job.course.total, step.batch))
    return ",".join(f"{service:.0f}" for service in found)


def _jobs(run: PlannedRun, traces: Path) -> Trace:
    if run.arrivals is None:
        return _read(traces / run.trace)
    return drawn(run.arrivals, _models(applications(traces)))


@cache
def _read(path: Path) -> Trace:
    return read_trace(path)


@cache
def _models(folder: Path) -> dict[str, Epochs]:
    return read_models(folder)


def applications(traces: Path) -> Path:
    """Where measured times of models are."""
    found = sorted(path for path in traces.rglob("applications") if path.is_dir())
    return found[0] if found else traces / "applications"
