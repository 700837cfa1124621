"""Which policy is good for what? Each on each trace, ablations, and loads from light to overload: tables and pictures.

    python -m benchmarks.policies [--traces DIR] [--out out] [--keep out/policies] [--parts traces ablations loads]
                                  [--nodes 4x4] [--seeds 1]

The traces are those of the folder that --traces names, or EDL_TRACES; the project has none that were published.
Writes policies.md below --out, and pictures below its folder `pictures`. In a page that is there, what stands between
its marks is written anew, and the words around them stay. Each run is kept when it is over: the same command goes on
where it was.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, Final

from benchmarks.policies_runs import (
    BASELINES,
    COSTS,
    DOUBTS,
    FIXED,
    LOADS,
    RANGES,
    Found,
    Kept,
    PlannedRun,
    Setting,
    ablated,
    has_models,
    loaded,
    on_trace,
    play,
    setting_of,
    traces_in,
)
from edl.cluster.policies import registry
from edl.errors import ConfigError
from edl.simulator.trace import MEASURED

# --------------------------------------------------------------------------------------------------------------- tables


Ablations = Mapping[tuple[str, str, str], Found]
Loads = Sequence[tuple[float, Sequence[Mapping[str, Found]]]]  # load, then for each seed what each kind came to
GOALS: Final = (2.0, 10.0)  # of 2006.13878: so many times as many jobs, in such a share of the time


class Page:
    """Markdown. What the command writes stands between two marks; the words around them are people's."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, name: str, block: str) -> None:
        text = self._path.read_text(encoding="utf-8") if self._path.is_file() else "# Policies compared\n"
        self._path.write_text(replaced(text, name, block), encoding="utf-8")


def replaced(text: str, name: str, block: str) -> str:
    """With that block; at the end, where the page has no place for it."""
    begin, end = f"<!-- measured: {name} -->", f"<!-- end: {name} -->"
    new = f"{begin}\n\n{block.strip()}\n\n{end}"
    if begin not in text:
        return f"{text.rstrip()}\n\n## {name}\n\n{new}\n"
    return re.sub(re.escape(begin) + ".*?" + re.escape(end), lambda _: new, text, flags=re.DOTALL)


def of_trace(rows: Sequence[tuple[str, Found]], setting: Setting, picture: Path) -> str:
    deadlines = any(found.summary.deadlines for _, found in rows)
    head = [
        "policy",
        "knows",
        "mean",
        "median",
        "p95",
        "p99",
        "makespan",
        "in use",
        "changes",
        "slower than on its share",
    ]
    table = [_row([*head, "deadlines met"] if deadlines else head)]
    table.append(_row(["---"] * (len(head) + deadlines)))
    for label, found in rows:
        summary = found.summary
        cells = [label, knows(found), *map(_seconds, (summary.mean, summary.median, summary.p95, summary.p99))]
        cells += [_seconds(summary.makespan), f"{summary.utilization:.0%}", f"{summary.changes:.1f}"]
        cells.append("-" if summary.unfair is None else f"{summary.unfair:.0%}")
        if summary.finished < summary.jobs:
            cells[2] = f"{cells[2]} ({summary.finished} of {summary.jobs} jobs)"
        table.append(_row([*cells, f"{summary.deadlines_met}"] if deadlines else cells))
    for whose, figures, met in setting.published:
        cells = [f"*{whose}*", "", *map(_seconds, figures), *[""] * (len(head) - 2 - len(figures))]
        table.append(_row([*cells, "" if met is None else f"{met}"] if deadlines else cells))
    first = rows[0][1]
    count, devices = first.run.nodes
    rounds = f", rounds of {setting.interval_s:g} s" if setting.interval_s else ""
    nodes = "1 node" if count == 1 else f"{count} nodes"
    said = f"{first.summary.jobs} jobs on {nodes} of {devices} devices{rounds}, {setting.cost} s for a change."
    return "\n\n".join([said, "\n".join(table), _shown("Completion times by policy", picture)])


def knows(found: Found) -> str:
    """What the policy was told beyond what live jobs say."""
    entry = registry.known(found.run.policy)
    told = []
    if entry.sees_left:
        told.append("what is left")
    if entry.sees_speed:
        told.append("fitted speeds" if found.fitted else "true speeds")
    if any(name == "sample" for name, _ in found.run.parameters):
        told.append("how long jobs of the trace are")
    return ", ".join(told) or "-"


def of_ablations(found: Ablations, picture: Path) -> str:
    columns = [(kind, known) for kind, _ in FIXED for known, _, _ in DOUBTS]
    table = [_row(["a change costs", *[f"batch {kind}, speeds {known}" for kind, known in columns]])]
    table.append(_row(["---"] * (len(columns) + 1)))
    for cost in COSTS:
        summaries = [found[cost, *column].summary for column in columns]
        cells = [f"{_seconds(one.mean)} / {_seconds(one.p99)} ({one.changes:.1f})" for one in summaries]
        table.append(_row([cost if cost == "measured" else f"{cost} s", *cells]))
    said = "Mean / p99 of completion times in seconds, and changes of a job:"
    return "\n\n".join([said, "\n".join(table), _shown("Completion times by what a change costs", picture)])


def of_loads(rows: Loads, picture: Path) -> str:
    head = ["load", "jobs", "over in 8 h", "mean, s"]
    head += [f"{kind}: {what}" for kind in BASELINES for what in ("jobs", "time")]
    table = [_row(head), _row(["---"] * len(head))]
    for load, seeds in rows:
        elastic = [of_seed["elastic"] for of_seed in seeds]
        cells = [f"{load:g}", f"{mean(one.summary.jobs for one in elastic):.0f}"]
        cells += [f"{mean(one.in_window for one in elastic):.0f}", _seconds(mean(_mean(one) for one in elastic))]
        for kind in BASELINES:
            cells += [_ratio(value, goal) for value, goal in zip(ratios(seeds, kind), GOALS, strict=True)]
        table.append(_row(cells))
    return "\n\n".join(["\n".join(table), _shown("Elastic batches over fixed ones, by load", picture)])


def ratios(seeds: Sequence[Mapping[str, Found]], kind: str) -> tuple[float, float]:
    """Elastic over that baseline: jobs that were over in the window, and how many times shorter the mean time is."""
    jobs = mean(one["elastic"].in_window for one in seeds) / max(mean(one[kind].in_window for one in seeds), 1e-9)
    times = mean(_mean(one[kind]) for one in seeds) / mean(_mean(one["elastic"]) for one in seeds)
    return jobs, times


def _mean(found: Found) -> float:
    assert found.summary.mean is not None and found.summary.finished == found.summary.jobs
    return found.summary.mean


def _ratio(value: float, goal: float) -> str:
    return f"**{value:.2f}**" if value >= goal else f"{value:.2f}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _shown(said: str, picture: Path) -> str:
    return f"![{said}](pictures/{picture.name})"


# ------------------------------------------------------------------------------------------------------------- pictures


MARKS: Final = (("median", "o"), ("mean", "D"), ("p95", "<"), ("p99", "|"))


def draw_completions(
    rows: Sequence[tuple[str, Found]], published: Sequence[tuple[str, tuple[float, ...], int | None]], path: Path
) -> None:
    """A line for each policy, with four of its completion times; below, in grey, those of others."""
    plt = _pyplot()
    of_ours = [
        (label, {name: getattr(found.summary, name) for name, _ in MARKS if getattr(found.summary, name) is not None})
        for label, found in rows
    ]
    of_others = [
        (whose, dict(zip(("mean", "median", "p95", "p99"), figures, strict=False))) for whose, figures, _ in published
    ]
    figure, axes = plt.subplots(figsize=(9, 0.9 + 0.3 * (len(of_ours) + len(of_others))), layout="constrained")
    for at, (_, figures) in enumerate([*of_ours, *of_others]):
        _draw_row(axes, at, figures, "tab:blue" if at < len(of_ours) else "grey")
    for name, mark in MARKS:
        axes.plot([], [], mark, color="black", linestyle="none", label=name)
    axes.set_yticks(range(len(of_ours) + len(of_others)), [label for label, _ in [*of_ours, *of_others]])
    axes.set(xscale="log", xlabel="completion time, s")
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3, which="both")
    axes.legend(fontsize="small", loc="lower left", bbox_to_anchor=(0, 1), ncols=4, frameon=False)
    _save(plt, figure, path)


def _draw_row(axes: Any, at: int, figures: Mapping[str, float], color: str) -> None:
    if not figures:
        return
    axes.hlines(at, min(figures.values()), max(figures.values()), color=color, alpha=0.4)
    for name, mark in MARKS:
        if name in figures:
            axes.plot(figures[name], at, mark, color=color, markersize=6)


def draw_ablations(found: Mapping[tuple[str, str, str], Found], path: Path) -> None:
    """Mean completion time over what a change costs; what a change of a live job costs has a place of its own."""
    plt = _pyplot()
    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    costs = [cost for cost in COSTS if cost != "measured"]
    for (kind, _), style in zip(FIXED, ("-", "--"), strict=True):
        for (known, _, _), color in zip(DOUBTS, ("tab:blue", "tab:orange", "tab:green"), strict=True):
            means = [found[cost, kind, known].summary.mean for cost in costs]
            label = f"batch {kind}, speeds {known}"
            axes.plot([float(cost) for cost in costs], means, style, color=color, marker="o", label=label)
            axes.plot(MEASURED.boot_s, found["measured", kind, known].summary.mean, "x", color=color)
    axes.plot([], [], "x", color="black", linestyle="none", label="measured: stop-free, a boot of 9 s")
    axes.set(xscale="log", xlabel="what a change costs, s", ylabel="mean completion time, s", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend(fontsize="x-small", ncols=2)
    _save(plt, figure, path)


def draw_loads(rows: Loads, path: Path) -> None:
    plt = _pyplot()
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    names = ("jobs over in 8 h", "mean completion time")
    at = [load for load, _ in rows]
    for place, (axes, name, goal) in enumerate(zip(panels, names, GOALS, strict=True)):
        for kind in BASELINES:
            axes.plot(at, [ratios(seeds, kind)[place] for _, seeds in rows], marker="o", label=f"batch fixed: {kind}")
        axes.axhline(goal, color="black", linewidth=0.8, linestyle=":")
        axes.axhline(1, color="black", linewidth=0.5)
        axes.annotate(f"{goal:g} times", (at[-1], goal), ha="right", va="bottom", fontsize="small")
        axes.set(xlabel="load", xticks=at)
        axes.set_title(f"{name}: times better than fixed", fontsize="medium")
        axes.grid(alpha=0.3)
    panels[1].set_yscale("log")
    panels[1].set_yticks([1, 2, 5, 10], ["1", "2", "5", "10"])
    panels[1].minorticks_off()
    panels[0].legend(fontsize="small")
    _save(plt, figure, path)


def _pyplot() -> Any:
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "edl"
    mpl.rcParams["svg.fonttype"] = "none"  # letters stay letters: small files
    from matplotlib import pyplot as plt

    return plt


def _save(plt: Any, figure: Any, path: Path) -> None:
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


# ---------------------------------------------------------------------------------------------------------- the command


PARTS = ("traces", "ablations", "loads")


class Comparison:
    """Plays what was not played yet, says how far it is, and writes a part of the page when it has all of it."""

    def __init__(self, traces: Path, out: Path, keep: Path) -> None:
        self._traces, self._kept = traces, Kept(keep, traces)
        self._page = Page(out / "policies.md")
        self._pictures = out / "pictures"
        self._pictures.mkdir(parents=True, exist_ok=True)

    def of_traces(self, nodes: tuple[int, int]) -> None:
        for trace in traces_in(self._traces):
            planned = on_trace(trace, nodes)
            found = self._all(run for _, run in planned)
            rows = [(label, found[run]) for label, run in planned]
            name, setting = Path(trace).stem, setting_of(trace, nodes)
            picture = self._pictures / f"policies-{name}.svg"
            draw_completions(rows, setting.published, picture)
            self._page.write(name, of_trace(rows, setting, picture))

    def of_ablations(self) -> None:
        traces = [trace for trace in traces_in(self._traces) if Path(trace).stem == "workload-6"]
        if not traces:
            print("no ablations: they need workload-6.csv in --traces", file=sys.stderr)
            return
        planned = ablated(traces[0])
        found = self._all(planned.values())
        table = {key: found[run] for key, run in planned.items()}
        picture = self._pictures / "policies-ablations.svg"
        draw_ablations(table, picture)
        self._page.write("ablations", of_ablations(table, picture))

    def of_loads(self, seeds: int) -> None:
        if not has_models(self._traces):
            print("no loads: they need the tables of Pollux's applications in --traces", file=sys.stderr)
            return
        for ranges in RANGES:
            rows = []
            for load in LOADS:
                planned = [loaded(ranges, load, seed) for seed in range(seeds)]
                found = self._all(run for of_seed in planned for run in of_seed.values())
                rows.append((load, [{kind: found[run] for kind, run in of_seed.items()} for of_seed in planned]))
            picture = self._pictures / f"policies-loads-{ranges}.svg"
            draw_loads(rows, picture)
            self._page.write(f"loads-{ranges}", of_loads(rows, picture))

    def _all(self, runs: Iterable[PlannedRun]) -> dict[PlannedRun, Found]:
        planned = list(dict.fromkeys(runs))
        found = {}
        for at, run in enumerate(planned, start=1):
            known = self._kept.find(run)
            if known is None:
                began = time.monotonic()
                print(f"{at} of {len(planned)}: {run}", file=sys.stderr, flush=True)
                known = play(run, self._traces)
                self._kept.keep(known)
                print(
                    f"  mean {known.summary.mean or 0:,.0f} s, took {time.monotonic() - began:.0f} s", file=sys.stderr
                )
            found[run] = known
        return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    named = os.environ.get("EDL_TRACES")
    parser.add_argument(
        "--traces",
        type=Path,
        required=not named,
        default=Path(named or ""),
        help="a folder with traces and their tables [EDL_TRACES]",
    )
    parser.add_argument("--out", type=Path, default=Path("out"), help="where the page and its pictures are written")
    parser.add_argument("--keep", type=Path, default=Path("out/policies"), help="where runs are kept")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--nodes", default="4x4", help="for traces of your own: nodes times devices")
    parser.add_argument("--seeds", type=int, default=1, help="of the loads: so many draws, of which the mean is taken")
    given = parser.parse_args(arguments)
    matched = re.fullmatch(r"([1-9]\d{0,5})x([1-9]\d{0,4})", given.nodes)
    if matched is None or given.seeds < 1:
        parser.error("--nodes must be nodes times devices, such as 4x4; --seeds 1 or more")
    try:
        comparison = Comparison(given.traces, given.out, given.keep)
        if "traces" in given.parts:
            comparison.of_traces((int(matched[1]), int(matched[2])))
        if "ablations" in given.parts:
            comparison.of_ablations()
        if "loads" in given.parts:
            comparison.of_loads(given.seeds)
    except ConfigError as error:
        print(f"benchmarks.policies: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("benchmarks.policies: interrupted; the same command goes on with what is kept", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
