"""Measure how long a scheduler's decisions take, from the news until the decision is durable, for its log.

Owns: the newest times, and when a line of them is due. Does not own: the decisions.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Final, NamedTuple

KEPT: Final = 10_000
TOLD_EVERY_S: Final = 60.0
LINE: Final = re.compile(
    r"term (\d+): (\d+) decisions, the newest (\d+) within ([\d.]+) ms \(median\), ([\d.]+) ms \(p95\)$", re.MULTILINE
)


class ToldTimes(NamedTuple):
    """Decision times of one reign, read from a line of a log."""

    term: int
    made: int  # decisions of that reign
    newest: int  # whose times these are
    median_ms: float
    p95_ms: float


class DecisionTimes:
    """Decision times of one reign. To note a time costs an append; the times are sorted once a minute."""

    def __init__(self, now: float) -> None:
        self._newest: deque[float] = deque(maxlen=KEPT)
        self._made = self._told = 0
        self._told_at = now

    def note(self, seconds: float) -> None:
        self._newest.append(seconds)
        self._made += 1

    def due(self, now: float) -> str:
        """A line for the log; empty where it is not time, or nothing was decided since."""
        if now - self._told_at < TOLD_EVERY_S:
            return ""
        self._told_at = now
        return self.last()

    def last(self) -> str:
        """A line of all; empty where nothing was decided that was not told."""
        if self._made == self._told:
            return ""
        self._told = self._made
        ordered = sorted(self._newest)
        median, p95 = (1000 * ordered[int(share * len(ordered))] for share in (0.5, 0.95))
        return f"{self._made} decisions, the newest {len(ordered)} within {median:.1f} ms (median), {p95:.1f} ms (p95)"


def told_in(log: str) -> list[ToldTimes]:
    """The last line of each term that a log tells of."""
    found = {
        int(term): ToldTimes(int(term), int(made), int(newest), float(median), float(p95))
        for term, made, newest, median, p95 in LINE.findall(log)
    }
    return list(found.values())
