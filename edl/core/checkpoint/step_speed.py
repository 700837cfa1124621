"""Measure how fast a ring trains and how much a checkpoint slows it down, as far as reports of steps show.

While nothing is saved, the time that a step takes is looked at in short stretches, of which the middle one counts: an
evaluation or a pause makes one of them long, and not the others. From the moment when a saving is announced until all
its parts are durable, steps come later than that if copies and writes hold up training. Reports come at any point of a
step, at the beginning of that stretch as at its end; so a single figure is off by up to a step, either way, and the
middle one of several is not.

Owns: these stretches. Does not own: what follows from them (`edl.core.checkpoint.interval`).
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Final

STRETCHES: Final = 15

Seen = tuple[int, float]  # the newest step, and when it was reported


class SavingPace:
    """Step times of the present ring, and the delay by a saving. Each leader measures anew.

    `stretch_s`: the shortest stretch that is measured.
    """

    def __init__(self, stretch_s: float) -> None:
        self._stretch_s = stretch_s
        self._generation = 0
        self._step_times_s: deque[float] = deque(maxlen=STRETCHES)
        self._since: Seen | None = None  # the stretch that nothing is saved in
        self._begun: Seen | None = None  # the saving

    @property
    def step_time_s(self) -> float | None:
        return median(self._step_times_s) if self._step_times_s else None

    def look(self, generation: int, seen: Seen) -> None:
        self._follow(generation)
        self._begun = None
        if self._since is None:
            self._since = seen
            return
        steps, seconds = seen[0] - self._since[0], seen[1] - self._since[1]
        if steps > 0 and seconds >= self._stretch_s:
            self._step_times_s.append(seconds / steps)
            self._since = seen

    def begin(self, generation: int, seen: Seen) -> None:
        """Begin to measure a saving."""
        self.look(generation, seen)
        self._since, self._begun = None, seen

    def end(self, generation: int, seen: Seen) -> float | None:
        """Return by how many seconds the steps came later than without the saving, once all its parts are durable.

        None: not known.
        """
        self._follow(generation)
        begun, self._begun = self._begun, None
        step_time_s = self.step_time_s
        if begun is None or step_time_s is None:
            return None
        return (seen[1] - begun[1]) - (seen[0] - begun[0]) * step_time_s

    def _follow(self, generation: int) -> None:
        if generation != self._generation:
            self._generation = generation
            self._step_times_s.clear()
            self._since = self._begun = None
