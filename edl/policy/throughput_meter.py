"""The throughput of each size of a job: batches and samples per second, from the steps that workers report to the
leader.

Owns: the measurements of the sizes seen so far, the newest visit of each. Does not own: clocks, nor decisions
(`edl.policy`).
"""

from __future__ import annotations

from collections import deque
from typing import Final

from edl.protocol.tally import Rate

SETTLE_STEPS: Final = 2  # first steps of a generation, which the switch and empty pipelines slow down: not measured
WINDOW_S: Final = 60.0  # older observations say little about the present
FEWEST: Final = 10  # least batches of a visit that is remembered

Point = tuple[float, int, int]  # time, step, samples trained until then


class Meter:
    """A meter that gets observations of the job; they may come as seldom as once a second."""

    def __init__(self, known: tuple[Rate, ...] = ()) -> None:
        self._known = {rate.size: rate for rate in known}
        self._generation = 0
        self._began = 0  # step after which the generation took over
        self._size = 0
        self._points: deque[Point] = deque()

    def look(self, generation: int, size: int, point: Point) -> None:
        """Take an observation of the ring of `generation` at `point`. An observation without news is ignored."""
        at, step, _ = point
        if generation != self._generation:
            self._remember()
            self._generation, self._size, self._began = generation, size, step
            self._points.clear()
        if step < self._began + SETTLE_STEPS or (self._points and step <= self._points[-1][1]):
            return
        self._points.append(point)
        while at - self._points[0][0] > WINDOW_S and len(self._points) > 2:
            self._points.popleft()

    @property
    def present(self) -> Rate | None:
        """The rate of the present generation, so far."""
        if len(self._points) < 2:
            return None
        (began, first, before), (ended, last, after) = self._points[0], self._points[-1]
        return Rate(self._size, last - first, max(0, after - before), ended - began)

    @property
    def rates(self) -> tuple[Rate, ...]:
        """The rate of each size in its newest visit that was long enough, smallest size first."""
        known = dict(self._known)
        present = self.present
        if present is not None and (present.size not in known or present.batches >= FEWEST):
            known[present.size] = present
        return tuple(known[size] for size in sorted(known))

    def _remember(self) -> None:
        present = self.present
        if present is not None and present.batches >= FEWEST:
            self._known[present.size] = present
