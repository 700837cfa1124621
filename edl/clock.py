"""Time as a value: shells read a clock and pass the time to machines, which never read one."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Return seconds of a clock that never goes back; only differences have a meaning."""

    def wall(self) -> float:
        """Return seconds since 1970, for people and for events."""


class SystemClock:
    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()


class ManualClock:
    """A clock that moves only when told to, for tests and simulations."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError(f"time does not go back: {seconds}")
        self._now += seconds
