"""The time by which a queue is decided: seconds since 1970, which neither jump nor go back.

The wall clock may be set at any moment, and a process may be paused. Neither makes a deadline pass: time goes on by a
clock that only counts, by no more than a while between two looks, and comes near to the wall clock slowly.

Owns: this time, as pure code. Does not own: reading any clock.
"""

from __future__ import annotations

import math
from typing import Final

RATE: Final = 0.1  # by which it is faster or slower than the clock that counts, until it is the wall clock's


class SeenTime:
    """The time that one process has seen pass."""

    def __init__(self) -> None:
        self.now = 0.0
        self._wall = self._counted = math.nan  # as they were read last

    def advance(self, wall: float, counted: float | None = None, longest_s: float = math.inf) -> float:
        """Return the time now. `counted`: by a clock that only counts; where there is none, the wall clock stands for
        it. `longest_s`: no more than that has been seen since the last call.
        """
        counted = wall if counted is None else counted
        if math.isnan(self._wall):
            self.now = wall
        else:
            passed = min(max(0.0, counted - self._counted), longest_s)
            behind = wall - (self.now + passed)
            self.now += passed + max(-RATE * passed, min(behind, RATE * passed))
        self._wall, self._counted = wall, counted
        return self.now
