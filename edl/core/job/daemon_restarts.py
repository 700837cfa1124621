"""Limit how often a dying process is restarted: a pure decision."""

from __future__ import annotations

from typing import Final

MOST: Final = 5
SESSIONS: Final = 6.0  # so many session time-outs make the time within which `MOST` are too many


class Restarts:
    """Restarts of a daemon: without limit for one that dies now and then, but not for one that keeps dying (I12)."""

    def __init__(self, session_timeout_s: float) -> None:
        self.within_s = SESSIONS * session_timeout_s
        self._started: list[float] = []

    def allow(self, now: float) -> bool:
        """Tell whether another restart is allowed, and count it."""
        self._started = [at for at in self._started if now - at < self.within_s]
        if len(self._started) >= MOST:
            return False
        self._started.append(now)
        return True
