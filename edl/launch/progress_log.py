"""Progress of a job and figures reported by its script, over time: a file beside its record, for pages and reports.

Owns: the file's form, and that it stays small however long the job lives: the gap between two lines grows to a
thousandth of the job's age, so a day is 5,500 lines. Does not own: what is shown of it (`edl.dashboard`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from edl.launch.job_records import Folder
from edl.protocol.record import Status

LEAST_S: Final = 1.0
OF_AGE: Final = 1000
MOST_FIGURES: Final = 32


class Point(msgspec.Struct, frozen=True, array_like=True):
    ts: float
    step: int  # of all lives
    samples: int
    size: int
    figures: dict[str, float] = {}  # what the script reports, the mean of all workers
    base: int = 0  # the step after which this life of the job began
    host: str = ""  # of the worker of rank 0
    generation: int = 1


def point_of(status: Status, ts: float) -> Point | None:
    """Return a point; None if the leader does not know the job's progress."""
    if status.stable is None or not status.generation:
        return None
    first = next((worker.host for worker in status.workers if worker.rank == 0), "")
    step, samples = status.base + status.stable.step, status.stable.samples
    return Point(ts, step, samples, status.size, figures_of(status), status.base, first, status.generation)


def figures_of(status: Status) -> dict[str, float]:
    """Return each reported figure, averaged over the workers that report it."""
    values: dict[str, list[float]] = {}
    for worker in status.workers:
        for name, value in (worker.usage.reported if worker.usage else {}).items():
            values.setdefault(name, []).append(value)
    return {name: sum(found) / len(found) for name, found in sorted(values.items())[:MOST_FIGURES]}


def is_due(first: float, last: float, ts: float) -> bool:
    return ts - last >= max(LEAST_S, (ts - first) / OF_AGE)


class FigureLog:
    """Append to the figures of a job as its launcher sees them."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._first = self._last = 0.0

    def take(self, status: Status, ts: float) -> None:
        point = point_of(status, ts)
        if point is None or (self._first and not is_due(self._first, self._last, ts)):
            return
        self._first, self._last = self._first or ts, ts
        self._folder.append_figures(msgspec.json.encode(point) + b"\n")


def read_figures(folder: Folder) -> Iterator[Point]:
    """Yield all points; a line that is being written, or was broken off, is left out."""
    if not folder.figures.exists():
        return
    for line in folder.figures.read_bytes().split(b"\n"):
        try:
            yield msgspec.json.decode(line, type=Point)
        except msgspec.MsgspecError:
            continue
