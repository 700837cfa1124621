"""`edl profile`: measure a job's throughput at each size."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from edl.cli import tables
from edl.cli.commands import heed_interrupts, located, seconds
from edl.errors import ConfigError, EdlError, UsageError
from edl.launch.locate_job import Whereabouts
from edl.outside.size_profile import BATCHES, TIMEOUT_S, Profile, Wish, profile


def show_profile(arguments: argparse.Namespace) -> int:
    where, progress = located(arguments), tables.Progress(sys.stderr)
    if arguments.plot:
        check_plot(Path(arguments.plot))
    try:
        found = asyncio.run(_profile(where, arguments, progress))
    except asyncio.CancelledError:
        raise EdlError("interrupted; the job has the size again that it was asked for before") from None
    finally:
        progress.end()
    if arguments.plot:
        plot(found, Path(arguments.plot))
    if arguments.json:
        tables.say_json(found)
    else:
        _show(found)
    return 0


async def _profile(where: Whereabouts, arguments: argparse.Namespace, progress: tables.Progress) -> Profile:
    heed_interrupts()
    async with where.client() as job:
        status = await job.status()
        wish = Wish(
            smallest=_number(arguments, "min", status.min_workers),
            largest=_number(arguments, "max", status.max_workers or status.size),
            stride=_number(arguments, "stride", 1),
            batches=_number(arguments, "batches", BATCHES),
            timeout_s=seconds(arguments.timeout) or TIMEOUT_S,
        )
        return await profile(job, where.job, wish, progress.show)


def _number(arguments: argparse.Namespace, name: str, default: int) -> int:
    text = getattr(arguments, name)
    if text is None:
        return max(1, default)
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"--{name} {text}: must be a whole number of at least 1")
    return int(text)


def _show(found: Profile) -> None:
    head = ("workers", "samples/s", "step", "speed-up", "efficiency", "each further worker adds", "batches")
    rows = [
        (
            str(row.size),
            f"{row.samples_s:.4g}",
            f"{1000 * row.step_s:.1f} ms",
            f"{row.speedup:.2f}",
            f"{row.efficiency:.2f}",
            "-" if row.marginal is None else f"{row.marginal:.2f}",
            str(row.batches),
        )
        for row in found.rows
    ]
    tables.table(head, rows)


def check_plot(path: Path) -> None:
    """Check that a picture can be drawn there, before minutes are spent on measuring. Raises ConfigError."""
    try:
        import matplotlib as _  # noqa: F401, ICN001 - only whether it is there
    except ImportError:
        raise ConfigError("--plot needs matplotlib: pip install 'horovod-edl[plot]'") from None
    if path.suffix not in {".png", ".svg", ".pdf"} or not path.parent.is_dir():
        raise ConfigError(f"--plot {path}: must be a .png, .svg or .pdf in a folder that is there")


def plot(found: Profile, path: Path) -> None:
    """Draw throughput over size, with the line of perfect scaling."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    sizes = [row.size for row in found.rows]
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    axes.plot(sizes, [row.samples_s for row in found.rows], "o-", label="measured")
    least = found.rows[0]
    axes.plot(sizes, [least.samples_s * size / least.size for size in sizes], ":", label="perfect")
    axes.set(xlabel="workers", ylabel="samples/s", title=f"job {found.job}", ylim=(0, None), xticks=sizes)
    axes.legend()
    figure.savefig(path)
    plt.close(figure)
