"""`edl simulate`: show the decisions of a policy about the jobs of a trace, in simulated time; draw them."""

from __future__ import annotations

import argparse
import math
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from edl.cli import tables
from edl.cluster.placement import Rule
from edl.cluster.policies import registry
from edl.cluster.views import Node
from edl.errors import ConfigError, UsageError
from edl.simulator.simulated_cluster import ClusterSimulation, Conditions, Faults, Played
from edl.simulator.simulated_fitting import Speeds, Truth
from edl.simulator.simulation_results import ClusterFigures, figures_of
from edl.simulator.trace import Trace, read_cost
from edl.simulator.trace_files import read_trace

NODES = re.compile(r"([1-9]\d{0,5})x([1-9]\d{0,4})")
TELL_S = 0.5  # from one progress report to the next, on a terminal
LINE_S = 10.0  # likewise elsewhere, where each report is a line
SPEEDS = ("fitted", "oracle")


def simulate(arguments: argparse.Namespace) -> int:
    if arguments.plot:
        from edl.cli.profile import check_plot

        check_plot(Path(arguments.plot))
    entry = registry.known(arguments.policy)
    policy = registry.build(arguments.policy, parameters_of(arguments.set))
    conditions = _conditions(arguments, entry)
    trace = read_trace(Path(arguments.trace), _folder(arguments, "applications"), _folder(arguments, "throughputs"))
    speeds = _speeds(arguments.speeds, entry, trace)
    progress = tables.Progress(sys.stderr)
    try:
        outcome = ClusterSimulation(trace, policy, speeds, conditions, _teller(progress)).run()
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("scipy"):
            raise
        raise ConfigError("this trace needs SciPy: pip install 'horovod-edl[cluster]'") from None
    finally:
        progress.end()
    found = figures_of(outcome, sum(node.devices for node in conditions.nodes))
    if arguments.plot:
        from edl.cli.simulate import draw

        draw(outcome, conditions.nodes, f"{trace.name}, {arguments.policy}", Path(arguments.plot))
    if arguments.json:
        tables.say_json(found)
    else:
        _show(found, arguments.policy)
    return 0


def parameters_of(given: list[str]) -> dict[str, str]:
    found = {}
    for text in given:
        name, is_, value = text.partition("=")
        if not is_ or not name:
            raise UsageError(f"--set {text}: must be NAME=VALUE, such as promote=8")
        found[name.replace("-", "_")] = value
    return found


def _conditions(arguments: argparse.Namespace, entry: registry.Known) -> Conditions:
    matched = NODES.fullmatch(arguments.nodes)
    if matched is None:
        raise ConfigError(f"--nodes {arguments.nodes}: must be nodes times devices, such as 16x4")
    count, devices = int(matched[1]), int(matched[2])
    rule = arguments.placement or entry.placement
    if rule not in set(Rule):
        raise ConfigError(f"--placement {rule}: must be {' or '.join(Rule)}")
    if not re.fullmatch(r"\d{1,18}", arguments.seed):
        raise ConfigError(f"--seed {arguments.seed}: must be a whole number of at least 0")
    return Conditions(
        nodes=tuple(Node(f"node-{number}", devices) for number in range(count)),
        interval_s=_number("interval", arguments.interval),
        cost=read_cost(arguments.change_cost),
        placement=Rule(rule),
        sees_left=entry.sees_left,
        failures=_faults("failures", arguments.failures, "MEAN:LENGTH:LOST"),
        stragglers=_faults("stragglers", arguments.stragglers, "MEAN:LENGTH:TIMES"),
        seed=int(arguments.seed),
    )


def _number(flag: str, text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 <= found < math.inf:
        raise ConfigError(f"--{flag} {text}: must be a number of seconds, 0 or more")
    return found


def _faults(flag: str, text: str | None, form: str) -> Faults:
    if text is None:
        return Faults()
    try:
        mean_s, length_s, much = (float(part) for part in text.split(":"))
    except ValueError:
        mean_s = length_s = much = math.nan
    least = 1 if flag == "stragglers" else 0  # a slow node is not faster
    if not (0 < mean_s < math.inf and 0 < length_s < math.inf and least <= much < math.inf):
        example = "86400:600:300" if flag == "failures" else "36000:600:2"
        raise ConfigError(f"--{flag} {text}: must be {form}, such as {example}")
    return Faults(mean_s, length_s, much)


def _speeds(wanted: str | None, entry: registry.Known, trace: Trace) -> Speeds:
    """Choose the speeds that the policy is given. The default is that of the simulator that published the trace."""
    if wanted is not None and wanted not in SPEEDS:
        raise ConfigError(f"--speeds {wanted}: must be {' or '.join(SPEEDS)}")
    fits = entry.sees_speed and not entry.sees_left and any(job.course.span is not None for job in trace.jobs)
    if (wanted or ("fitted" if fits else "oracle")) == "oracle":
        return Truth()
    from edl.simulator.simulated_fitting import Fitted

    return Fitted()


def _folder(arguments: argparse.Namespace, name: str) -> Path | None:
    text = getattr(arguments, name)
    if text is None:
        return None
    if not Path(text).is_dir():
        raise ConfigError(f"--{name} {text}: there is no such folder")
    return Path(text)


def _teller(progress: tables.Progress) -> Callable[[float, int, int], None]:
    """Return a function that reports progress every now and then."""
    last = time.monotonic()
    every = TELL_S if sys.stderr.isatty() else LINE_S

    def tell(now: float, over: int, jobs: int) -> None:
        nonlocal last
        if time.monotonic() - last >= every:
            last = time.monotonic()
            progress.show(f"{over} of {jobs} jobs are over after {now:.0f} s of the trace's time")

    return tell


def _show(found: ClusterFigures, policy: str) -> None:
    summary = found.summary
    rows = [
        ("jobs that finished", f"{summary.finished} of {summary.jobs}"),
        ("completion time, mean", _seconds(summary.mean)),
        ("median", _seconds(summary.median)),
        ("p95", _seconds(summary.p95)),
        ("p99", _seconds(summary.p99)),
        ("makespan", _seconds(summary.makespan)),
        ("devices in use", f"{summary.utilization:.1%}, training {summary.training:.1%}"),
        ("time to the first worker, mean", _seconds(summary.queueing)),
        ("time without workers, mean", _seconds(summary.waiting)),
        ("changes of a job, mean", f"{summary.changes:.2f}"),
        ("slower than alone on its share", _unfairness(found)),
    ]
    if summary.deadlines:
        rows.append(("deadlines met", f"{summary.deadlines_met} of {summary.deadlines}"))
    tables.table((policy, ""), rows)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f} s"


def _unfairness(found: ClusterFigures) -> str:
    summary = found.summary
    if summary.unfair is None or summary.worst_slowdown is None:
        return "-"
    return f"{summary.unfair:.1%} of jobs, at worst {summary.worst_slowdown:.2f} times"


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
    for when in times:
        busy.append(busy[-1] + changes[when][0])
        waiting.append(waiting[-1] + changes[when][1])
    return times, busy[1:], waiting[1:]
