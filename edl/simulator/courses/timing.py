"""The time of a pass of one application, on measured placements and between them.

On a measured placement, times are linear between its batches. Elsewhere they are linear between all measured points of
(nodes, workers, batch of a worker), as in the simulator that the tables were published with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edl.simulator.courses.course import Shape

Floats = NDArray[np.float64]
Points = Mapping[
    tuple[int, int, int], tuple[float, float]
]  # nodes, workers, batch of a worker -> step and sync seconds

MOST_NODES: Final = 16  # most nodes of a measurement


class Timing:
    """The times of one application. `placements` has the measurements of each placement, by batch of a worker; `others`
    has measurements at larger sizes.
    """

    def __init__(self, placements: Mapping[Shape, tuple[Floats, Floats, Floats]], others: Points) -> None:
        self._placements = dict(placements)
        self._others = dict(others)
        self._between: tuple[Any, Any] | None = None
        self._smallest = min(float(batches[0]) for batches, _, _ in placements.values())
        self._largest = max(float(batches[-1]) for batches, _, _ in placements.values())

    @property
    def passes(self) -> tuple[int, int]:
        """The smallest and the largest batch of one worker that was measured."""
        return int(self._smallest), int(self._largest)

    @property
    def node_size(self) -> int:
        """The most workers on one node."""
        return max(max(shape) for shape in self._placements)

    def times(self, shape: Shape, batches: Floats, *, nearest: bool = False) -> tuple[Floats, Floats]:
        """Return the seconds of a step and of its sync for each batch of a worker; NaN where no measurement is near.

        With `nearest`, the nearest measurement is taken instead.
        """
        found = self._placements.get(rotated(shape))
        if found is not None:
            known, step, sync = found
            outside = np.zeros(len(batches), bool) if nearest else (batches < known[0]) | (batches > known[-1])
            return (
                np.where(outside, np.nan, np.interp(batches, known, step)),
                np.where(outside, np.nan, np.interp(batches, known, sync)),
            )
        return self._scattered(shape, batches, nearest)

    def _scattered(self, shape: Shape, batches: Floats, nearest: bool) -> tuple[Floats, Floats]:
        linear, closest = self._interpolators()
        points = np.column_stack(
            [np.full(len(batches), min(len(shape), MOST_NODES)), np.full(len(batches), sum(shape)), batches]
        )
        values = np.asarray(linear(points))
        if nearest and np.isnan(values).any():
            lost = np.isnan(values[:, 0])
            values[lost] = closest(points[lost])
        return values[:, 0], values[:, 1]

    def _interpolators(self) -> tuple[Any, Any]:
        """Make the interpolators at their first use: a small cluster never needs them."""
        if self._between is None:
            from scipy.interpolate import LinearNDInterpolator, NearestNDInterpolator

            sums: dict[tuple[int, int, int], list[tuple[float, float]]] = {}
            for shape, (batches, step, sync) in self._placements.items():
                for batch, *seconds in zip(batches, step, sync, strict=True):
                    sums.setdefault((len(shape), sum(shape), int(batch)), []).append((seconds[0], seconds[1]))
            means = [(point, tuple(np.mean(sums[point], axis=0))) for point in sorted(sums)]
            known = [*means, *self._others.items()]
            points = np.array([point for point, _ in known], dtype=float)
            values = np.array([seconds for _, seconds in known], dtype=float)
            self._between = LinearNDInterpolator(points, values), NearestNDInterpolator(points, values, rescale=True)
        return self._between


def rotated(shape: Shape) -> Shape:
    """Return the smallest rotation of a shape: a ring looks the same from each of its nodes."""
    return min(shape[i:] + shape[:i] for i in range(len(shape)))
