"""The comparison's tables, and the page that they stand in."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Final

from benchmarks.policies_plan import BASELINES, COSTS, DOUBTS, FIXED, Setting
from benchmarks.policies_runs import Found
from edl.cluster.policies import registry

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
