"""The simulated clusters of the comparison of policies: which they are, how each is played, and how it is kept.

Jobs that come faster and faster, as in arXiv 2006.13878, are drawn by a seed, with step times that Pollux measured. A
job is so many samples. Its batch may be any in its range, and a sample counts the same in each of them: so the paper
has it. A load of 1 is as much work as all devices can just do, if each job has one of them, and the smallest batch of
its range.

What came out of a run is kept under a name that says all of it: the run, the trace's files, the code of policies and
simulator. A run that was played is not played again, and one of other code is. What is made of the figures is the
business of `policies.py`.
"""

from __future__ import annotations

import hashlib
import itertools
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, Literal

import msgspec
import numpy as np

from edl import cluster, simulator
from edl.cluster.placement import Rule
from edl.cluster.policies import registry
from edl.cluster.views import Node
from edl.errors import ConfigError
from edl.simulator.course import BatchSpan, Epochs, Validation
from edl.simulator.simulated_cluster import ClusterSimulation, Conditions
from edl.simulator.simulated_fitting import Fitted, Truth
from edl.simulator.simulation_results import Summary, figures_of
from edl.simulator.trace import Trace, TraceJob, read_cost
from edl.simulator.trace_files import KINDS, head_of, read_application, read_trace

# -------------------------------------------------------------------------------------------------- jobs that are drawn


MODELS: Final = ("bert", "cifar10", "deepspeech2", "imagenet", "yolov3")
NODES: Final = (10, 4)
WINDOW_S: Final = 8 * 3600.0  # in which jobs come
MOST_WORKERS: Final = 16  # of a job
LENGTHS_S: Final = tuple(np.geomspace(600, 14_400, 9).tolist())  # with one device and the smallest batch
Ranges = Literal[
    "validated", "wide"
]  # from the smallest batch that a model was trained with to its end, or that was timed
Asked = Literal["smallest", "drawn", "largest"]


class Arrivals(msgspec.Struct, frozen=True):
    """The same load and seed are the same jobs at the same times. `asked`: which batches their owners asked for."""

    load: float
    ranges: Ranges
    asked: Asked
    seed: int = 0


def read_models(applications: Path) -> dict[str, Epochs]:
    """Raises ConfigError."""
    return {name: read_application(applications / name).course for name in MODELS if (applications / name).is_dir()}


def drawn(arrivals: Arrivals, models: dict[str, Epochs]) -> Trace:
    """Jobs come in a Poisson process; models and lengths are drawn evenly, batches evenly in their logarithm."""
    source = np.random.default_rng([arrivals.seed, round(1000 * arrivals.load)])
    names = sorted(models)
    courses: dict[tuple[str, float], Epochs] = {}
    jobs = []
    for at, when in enumerate(_times(source, arrivals.load)):
        key = str(source.choice(names)), float(source.choice(LENGTHS_S))
        share = {"smallest": 0.0, "drawn": float(source.random()), "largest": 1.0}[arrivals.asked]
        if key not in courses:
            courses[key] = of_samples(models[key[0]], key[1], arrivals.ranges)
        span = _span(courses[key])
        batch = round(span.smallest * (span.largest / span.smallest) ** share)
        jobs.append(TraceJob(f"{key[0]}-{at}", when, 1, courses[key], largest=MOST_WORKERS, batch=batch, row=at + 2))
    return Trace(f"load {arrivals.load:g}", tuple(jobs), NODES[1])


def of_samples(model: Epochs, length_s: float, ranges: Ranges) -> Epochs:
    """As much as one device does in that time with the smallest batch; each sample counts the same."""
    span = _span(model)
    if ranges == "wide":
        span = msgspec.structs.replace(span, own=span.smallest_pass, smallest=span.smallest_pass)
    work = length_s / model.step((1,), span.own).seconds  # steps of the smallest batch
    even = Validation(np.array([work]), sqr=np.array([0.0]), var=np.array([1.0]))
    return Epochs(model.timing, {span.smallest: even, span.largest: even}, span)


def _span(course: Epochs) -> BatchSpan:
    assert course.span is not None
    return course.span


def _times(source: np.random.Generator, load: float) -> Iterator[float]:
    between_s = float(np.mean(LENGTHS_S)) / (load * NODES[0] * NODES[1])
    now = float(source.exponential(between_s))
    while now < WINDOW_S:
        yield now
        now += float(source.exponential(between_s))


# ---------------------------------------------------------------------------------------------------------------- a run


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
    files.append(Path(__file__))  # it draws jobs
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


# ----------------------------------------------------------------------------------------------------- what is compared


Parameters = tuple[tuple[str, str], ...]
GITTINS: Final[Parameters] = (("rank", "gittins"), ("sample", OF_THE_TRACE))
ROWS: Final[tuple[tuple[str, str, Parameters], ...]] = (
    ("fifo", "fifo", ()),
    ("backfill", "backfill", ()),
    ("tiresias", "tiresias", ()),
    ("tiresias, gittins", "tiresias", GITTINS),
    ("elastic-tiresias", "elastic-tiresias", ()),
    ("gavel", "gavel", ()),
    ("dp", "dp", ()),
    ("dp, batch fixed", "dp", (("fixed_batch", "true"),)),
    ("goodput", "goodput", ()),
    ("elasticflow", "elasticflow", ()),
    ("srtf", "srtf", ()),
    ("optimus", "optimus", ()),
)

COSTS: Final = ("0.2", "measured", "3", "30", "120")
DOUBTS: Final[tuple[tuple[str, Parameters, str], ...]] = (
    ("fitted, doubted", (), "fitted"),
    ("fitted, believed", (("doubt", "0"),), "fitted"),
    ("true", (), "oracle"),
)
FIXED: Final[tuple[tuple[str, Parameters], ...]] = (("elastic", ()), ("fixed", (("fixed_batch", "true"),)))

LOADS: Final = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0)
RANGES: Final[tuple[Ranges, ...]] = ("validated", "wide")
BASELINES: Final[tuple[Asked, ...]] = ("smallest", "drawn", "largest")


class Setting(msgspec.Struct, frozen=True):
    """How a published trace is replayed, and what its authors' simulators, or ours of theirs, came to.

    `published`: whose policy, mean, median, p95, p99, makespan; deadlines met.
    """

    nodes: tuple[int, int]
    interval_s: float = 0.0
    cost: str = "30"
    tiresias: Parameters = ()
    published: tuple[tuple[str, tuple[float, ...], int | None], ...] = ()
    batches: bool = False  # jobs' batches may change


SETTINGS: Final[dict[str, Setting]] = {
    "workload-6": Setting(
        (16, 4),
        interval_s=60.0,
        batches=True,
        published=(
            ("Pollux", (2_472, 985, 7_021, 36_893, 58_376), None),
            ("Tiresias, of Pollux's simulator", (3_470, 1_248, 8_494, 46_336, 78_556), None),
            ("Optimus, of Pollux's simulator", (5_302, 2_494, 20_201, 44_771, 66_246), None),
        ),
    ),
    "195job": Setting(
        (16, 8),
        tiresias=(("limits", "3250,7200"), ("order", "running-first")),
        published=(
            ("Tiresias, of ElasticFlow's simulator", (27_497, 15_841, 86_087, 143_814, 849_902), 90),
            ("Themis, of ElasticFlow's simulator", (27_635, 15_870, 86_278, 141_921, 848_160), 80),
            ("Gandiva, of ElasticFlow's simulator", (39_867, 24_873, 145_113, 235_756, 916_339), 47),
            ("ElasticFlow: only the 147 jobs that it admits", (18_893, 4_768, 56_709, 133_116, 603_333), None),
        ),
    ),
    "60_job": Setting(
        (1, 8),
        cost="0",
        tiresias=(("limits", "3250,7200"), ("order", "running-first")),
        published=(
            ("FIFO, of Tiresias' simulator", (1_557,), None),
            ("2D-LAS, of Tiresias' simulator", (715,), None),
            ("SRTF, of Tiresias' simulator", (520,), None),
        ),
    ),
}


def traces_in(folder: Path) -> list[str]:
    """Paths below the folder. Raises ConfigError."""
    found = [str(path.relative_to(folder)) for path in sorted(folder.rglob("*.csv")) if _is_trace(path)]
    if not found:
        raise ConfigError(f"--traces {folder}: has no trace; name a folder with CSV files that `edl simulate` reads")
    return found


def _is_trace(path: Path) -> bool:
    """And no table: it has half of the columns of one, or more. What else it lacks is said when it is read."""
    head = head_of(path)
    return any(2 * len(head.intersection(columns)) >= len(columns) for columns in KINDS.values())


def on_trace(trace: str, nodes: tuple[int, int]) -> list[tuple[str, PlannedRun]]:
    """Each policy. `nodes`: for a trace that is none of the published ones."""
    setting = setting_of(trace, nodes)
    found = []
    for label, policy, parameters in ROWS:
        if "fixed" in label and not setting.batches:
            continue
        more = setting.tiresias if policy == "tiresias" else ()
        run = PlannedRun(
            policy=policy,
            nodes=setting.nodes,
            trace=trace,
            parameters=(*more, *parameters),
            interval_s=setting.interval_s,
            cost=setting.cost,
        )
        found.append((label, run))
    return found


def setting_of(trace: str, nodes: tuple[int, int]) -> Setting:
    return SETTINGS.get(Path(trace).stem, Setting(nodes))


def ablated(trace: str) -> dict[tuple[str, str, str], PlannedRun]:
    """`goodput`, by what a change costs, whether batches are elastic, and what is known of speeds."""
    setting = SETTINGS["workload-6"]
    found = {}
    for cost, (kind, fixed), (known, doubt, speeds) in itertools.product(COSTS, FIXED, DOUBTS):
        found[cost, kind, known] = PlannedRun(
            policy="goodput",
            nodes=setting.nodes,
            trace=trace,
            parameters=(*fixed, *doubt),
            interval_s=setting.interval_s,
            cost=cost,
            speeds="oracle" if speeds == "oracle" else "fitted",
        )
    return found


def loaded(ranges: Ranges, load: float, seed: int) -> dict[str, PlannedRun]:
    """`dp` with elastic batches, and the baselines: `dp` with the batches that owners asked for."""
    fixed = {asked: Arrivals(load, ranges, asked, seed) for asked in BASELINES}
    baselines = {str(asked): _of_load(arrivals, FIXED[1][1]) for asked, arrivals in fixed.items()}
    return {"elastic": _of_load(fixed["drawn"], ()), **baselines}


def _of_load(arrivals: Arrivals, parameters: Parameters) -> PlannedRun:
    return PlannedRun(
        policy="dp", nodes=NODES, arrivals=arrivals, parameters=parameters, interval_s=60.0, speeds="oracle"
    )


def has_models(traces: Path) -> bool:
    return all((applications(traces) / name).is_dir() for name in MODELS)
