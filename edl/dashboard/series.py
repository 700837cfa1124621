"""A job's history in as many points as a page can draw. Pure.

Owns: thinning, and rates computed from the job's progress. Does not own: the source of points
(`edl.launch.progress_log`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from edl.launch.progress_log import Point

MOST: Final = 1200  # points: twice as many as a phone has pixels across
NAMES: Final = 6  # number of the script's figures that are drawn


class Series(msgspec.Struct, frozen=True):
    """Columns of equal length; `None` where a value is not known."""

    at: tuple[float, ...]
    samples_s: tuple[float | None, ...]
    steps_s: tuple[float | None, ...]
    figures: dict[str, tuple[float | None, ...]]


class History:
    """The points of one job, oldest first, at most twice as many as are drawn."""

    def __init__(self) -> None:
        self.points: list[Point] = []

    def take(self, points: Iterable[Point]) -> None:
        """Add points that are newer than the present ones."""
        for point in points:
            if not self.points or point.ts > self.points[-1].ts:
                self.points.append(point)
        if len(self.points) > 2 * MOST:
            self.points = thinned(self.points, MOST)


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """Keep every n-th point, and the newest: the rate between two kept points is the mean rate over all points between
    them.
    """
    stride = max(1, -(-len(points) // most))
    kept = list(points[::stride])
    return kept if not points or kept[-1] is points[-1] else [*kept, points[-1]]


def series_of(points: Sequence[Point]) -> Series:
    """Compute the rate between each point and the one before; None if a life of the job began in between."""
    points = thinned(points, MOST)
    at, samples_s, steps_s = [], [], []
    for before, after in pairwise(points):
        span = after.ts - before.ts
        forward = after.step >= before.step and after.samples >= before.samples
        at.append(round(after.ts, 2))
        samples_s.append(_rounded((after.samples - before.samples) / span) if forward else None)
        steps_s.append(_rounded((after.step - before.step) / span) if forward else None)
    names = sorted({name for point in points[1:] for name in point.figures})[:NAMES]
    figures = {name: tuple(_figure(point, name) for point in points[1:]) for name in names}
    return Series(tuple(at), tuple(samples_s), tuple(steps_s), figures)


def _figure(point: Point, name: str) -> float | None:
    value = point.figures.get(name)
    return None if value is None else _rounded(value)


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")
