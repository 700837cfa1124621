"""The comparison's pictures: SVG that is the same, byte for byte, when it is drawn of the same figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.policies_page import GOALS, Loads, ratios
from benchmarks.policies_plan import BASELINES, COSTS, DOUBTS, FIXED
from benchmarks.policies_runs import Found
from edl.simulator.changes import MEASURED

MARKS: Final = (("median", "o"), ("mean", "D"), ("p95", "<"), ("p99", "|"))


def completions(
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


def ablations(found: Mapping[tuple[str, str, str], Found], path: Path) -> None:
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


def loads(rows: Loads, path: Path) -> None:
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
