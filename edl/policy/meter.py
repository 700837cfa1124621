"""What each size of a job achieves: batches and samples a second, from the steps that the leader hears of.

Owns: the measurements of the sizes seen so far, newest visit of each. Does not own: clocks, nor what follows from it
(`edl.policy`).
"""

from __future__ import annotations

from collections import deque
from typing import Final

from edl.protocol.figures import Rate

SETTLE_STEPS: Final = 2  # of a generation, which are not measured: the switch itself, and what it left to be loaded
WINDOW_S: Final = 60.0  # what is older says little about now
FEWEST: Final = 10  # batches of a visit that is worth remembering

Point = tuple[float, int, int]  # when, at which step, samples trained by then


class Meter:
    """Fed with looks at the job; a look is cheap, and may come as seldom as once a second."""

    def __init__(self, known: tuple[Rate, ...] = ()) -> None:
        self._known = {rate.size: rate for rate in known}
        self._generation = 0
        self._began = 0  # step after which the generation took over
        self._size = 0
        self._points: deque[Point] = deque()

    def look(self, generation: int, size: int, point: Point) -> None:
        """The ring of `generation` was seen at `point`. Looks that tell nothing new are ignored."""
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
        """Of the present generation, so far."""
        if len(self._points) < 2:
            return None
        (began, first, before), (ended, last, after) = self._points[0], self._points[-1]
        return Rate(self._size, last - first, max(0, after - before), ended - began)

    @property
    def rates(self) -> tuple[Rate, ...]:
        """Of each size the newest visit that is worth it, smallest size first."""
        known = dict(self._known)
        present = self.present
        if present is not None and (present.size not in known or present.batches >= FEWEST):
            known[present.size] = present
        return tuple(known[size] for size in sorted(known))

    def _remember(self) -> None:
        present = self.present
        if present is not None and present.batches >= FEWEST:
            self._known[present.size] = present
