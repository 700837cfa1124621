"""Draw a simulated cluster: how many workers each job had when, and how many devices were in use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edl.cluster.views import Node
from edl.simulator.simulated_cluster import Played

DAY_S, HOUR_S = 86_400.0, 3_600.0


def draw(outcome: Played, nodes: Sequence[Node], title: str, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    devices = sum(node.devices for node in nodes)
    first = min(one.job.submitted for one in outcome.jobs)
    last = max(one.finished if one.finished is not None else outcome.ended for one in outcome.jobs)
    unit, name = _unit(last - first)
    figure, (jobs, use) = plt.subplots(
        2, sharex=True, figsize=(10, 8), layout="constrained", gridspec_kw={"height_ratios": [3, 1]}
    )
    _draw_jobs(jobs, outcome, first, unit)
    times, busy, waiting = usage(outcome)
    shown = [(time - first) / unit for time in times]
    use.fill_between(shown, busy, step="post", alpha=0.6, label="devices in use")
    use.step(shown, waiting, where="post", color="tab:red", linewidth=0.8, label="jobs that wait")
    use.axhline(devices, color="black", linewidth=0.5)
    use.set(xlabel=f"{name} since the first job came", ylabel="number", ylim=(0, None), xlim=(0, (last - first) / unit))
    use.legend(loc="upper right", fontsize="small")
    jobs.set(title=title, ylabel="jobs, in the order in which they came")
    figure.savefig(path)
    plt.close(figure)


def _unit(length_s: float) -> tuple[float, str]:
    if length_s > 4 * DAY_S:
        return DAY_S, "days"
    return (HOUR_S, "hours") if length_s > 2 * HOUR_S else (60.0, "minutes")


def _draw_jobs(axes: Any, outcome: Played, first: float, unit: float) -> None:
    """Draw a line for each job: pale while it waits, and the darker the more workers it has."""
    import matplotlib as mpl
    from matplotlib.collections import LineCollection

    lines, sizes, waits = [], [], []
    for at, one in enumerate(outcome.jobs):
        end = one.finished if one.finished is not None else outcome.ended
        waits.append([((one.job.submitted - first) / unit, at), ((end - first) / unit, at)])
        for stretch in one.stretches:
            lines.append([((stretch.begin - first) / unit, at), ((stretch.end - first) / unit, at)])
            sizes.append(stretch.workers)
    width = max(0.3, min(6.0, 350 / len(outcome.jobs)))
    axes.add_collection(LineCollection(waits, colors="lightgrey", linewidths=width / 2))
    norm = mpl.colors.LogNorm(1, max([2, *sizes]))
    drawn = axes.add_collection(LineCollection(lines, array=sizes, cmap="viridis_r", norm=norm, linewidths=width))
    axes.set_ylim(len(outcome.jobs), -1)
    bar = axes.figure.colorbar(drawn, ax=axes, label="workers")
    ticks = [2**power for power in range(12) if 2**power <= norm.vmax]
    bar.set_ticks(ticks, labels=map(str, ticks))
    bar.minorticks_off()


def usage(outcome: Played) -> tuple[list[float], list[int], list[int]]:
    """Return times, and from each on the number of devices in use and of jobs that wait."""
    changes: dict[float, list[int]] = {}
    for one in outcome.jobs:
        end = one.finished if one.finished is not None else outcome.ended
        changes.setdefault(one.job.submitted, [0, 0])[1] += 1
        changes.setdefault(end, [0, 0])[1] -= 1
        for stretch in one.stretches:
            for when, sign in ((stretch.begin, 1), (stretch.end, -1)):
                change = changes.setdefault(when, [0, 0])
                change[0] += sign * stretch.workers
                change[1] -= sign
    times, busy, waiting = sorted(changes), [0], [0]
    for time in times:
        busy.append(busy[-1] + changes[time][0])
        waiting.append(waiting[-1] + changes[time][1])
    return times, busy[1:], waiting[1:]
