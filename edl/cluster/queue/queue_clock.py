"""The time that the queue decides by: seconds since 1970, which neither jump nor go back.

The wall clock may be set at any moment, and a process may be paused. Neither makes a deadline pass: time advances by a
monotonic clock, by at most a bound between two looks, and approaches the wall clock slowly.

Owns: this time, as pure code. Does not own: reading any clock.
"""

from __future__ import annotations

import math
from typing import Final

RATE: Final = 0.1  # by which it is faster or slower than the monotonic clock, until it equals the wall clock


class SeenTime:
    """The time that one process has seen pass."""

    def __init__(self) -> None:
        self.now = 0.0
        self._wall = self._counted = math.nan  # as they were read last

    def advance(self, wall: float, counted: float | None = None, longest_s: float = math.inf) -> float:
        """Return the time now. `counted`: a monotonic clock; None: the wall clock is used instead. `longest_s`: upper
        bound of the time that passes between two calls.
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
