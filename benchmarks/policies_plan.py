"""Which clusters are compared: every policy on every trace, ablations, and loads from light to overload."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.policies_loads import MODELS, NODES, Arrivals, Asked, Ranges
from benchmarks.policies_runs import OF_THE_TRACE, PlannedRun, applications
from edl.errors import ConfigError
from edl.simulator.traces.reading import KINDS
from edl.simulator.traces.rows import head_of

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
    tables = [path for pattern in ("applications", "throughputs*") for path in folder.rglob(pattern)]
    files = [path for path in sorted(folder.rglob("*.csv")) if not any(table in path.parents for table in tables)]
    found = [str(path.relative_to(folder)) for path in files if _is_trace(path)]
    if not found:
        raise ConfigError(f"--traces {folder}: has no trace; name a folder with CSV files that `edl simulate` reads")
    return found


def _is_trace(path: Path) -> bool:
    head = head_of(path)
    return any(head.issuperset(columns) for columns in KINDS.values())


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
