"""Which worker holds up the others: after Or, Zhang and Freedman (MLSys 2020), one whose throughput while it computes
is below 0.8 of the median's, as a moving average over batches.

Owns: each worker's pace and the verdict. Does not own: measuring, nor replacing.

All workers of a ring take the same time for a step; a slow one shows by what the others wait for it. So what counts is
the time of a step less that spent waiting for peers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

import msgspec

Dealt = Callable[[Mapping[str, float]], Mapping[str, int]]

ALPHA: Final = 0.1  # of the moving average, for one batch
SLOW: Final = 0.8  # of the median
FEWEST: Final = 2  # workers that can be compared at all
LEAST: Final = 0.01  # of a step: what a worker needs at least by itself, as clocks that are read apart cannot tell less
WORTH: Final = 0.95  # of the time of a step: what it must be at most with other shares, so that these are worth it


class Spent(msgspec.Struct, frozen=True):
    """What one worker did with its time in some batches, in seconds for each."""

    worker: str
    host: str
    compute_s: float
    data_s: float
    wait_s: float


@dataclass(frozen=True, slots=True)
class Straggler:
    """A worker that is too slow, and why it seems so."""

    worker: str
    pace: float
    cause: str  # "data", "compute" or "host"
    reason: str


@dataclass(frozen=True, slots=True)
class Uneven:
    """With these shares of the batch, all would be done at the same time."""

    shares: dict[str, float]
    pace: float  # of the one that is furthest off
    reason: str


@dataclass(slots=True)
class Paces:
    """Moving averages of how fast workers are, against the median of all."""

    slow: float = SLOW
    batches: int = 50  # for which a worker must have been slow
    _paces: dict[str, float] = field(default_factory=dict)
    _slow_for: dict[str, int] = field(default_factory=dict)
    _fast_for: dict[str, int] = field(default_factory=dict)
    _spent: tuple[Spent, ...] = ()

    def take(self, spent: Iterable[Spent], batches: int) -> None:
        """All workers of the ring in the same `batches` batches. A worker that is not among them is forgotten."""
        self._spent = tuple(spent)
        speeds = {one.worker: 1 / _own_s(one) for one in self._spent}
        keep, before = (1 - ALPHA) ** batches, self._paces
        usual = median(speeds.values()) if speeds else 0.0
        new = (1 - keep) / usual if usual else 0.0
        self._paces = {worker: keep * before.get(worker, 1.0) + new * speed for worker, speed in speeds.items()}
        slow = [worker for worker, pace in self._paces.items() if pace < self.slow]
        fast = [worker for worker, pace in self._paces.items() if pace > 1 / self.slow]
        self._slow_for = {worker: self._slow_for.get(worker, 0) + batches for worker in slow}
        self._fast_for = {worker: self._fast_for.get(worker, 0) + batches for worker in fast}

    @property
    def paces(self) -> dict[str, float]:
        """Of each worker of the ring."""
        return dict(self._paces)

    def verdict(self) -> Straggler | None:
        """The slowest of those that have been slow for long enough; never the only worker."""
        if len(self._paces) < FEWEST:
            return None
        late = [worker for worker, batches in self._slow_for.items() if batches >= self.batches]
        worker = min(late, key=lambda worker: (self._paces[worker], worker), default=None)
        return None if worker is None else self._explained(worker)

    def uneven(self, shares: Mapping[str, float], dealt: Dealt) -> Uneven | None:
        """A worker has been slow, or idle for lack of samples, for long enough with these shares of the batch; and with
        others, in whole samples, a step would take less time. `dealt`: the samples of each worker with such shares.
        """
        odd = {**self._fast_for, **self._slow_for}
        worker = max(odd, key=lambda worker: (odd[worker], worker), default=None)
        if worker is None or odd[worker] < self.batches or len(self._paces) < FEWEST:
            return None
        able = {one: shares.get(one, 1.0) * pace for one, pace in self._paces.items()}
        most = max(able.values())
        pace = self._paces[worker]
        reason = f"{worker} works at {pace:.2f} of the median pace with its share of the batch"
        better = {one: round(share / most, 3) for one, share in able.items()}
        return Uneven(better, pace, reason) if self._is_worth(dealt(shares), dealt(better)) else None

    def _is_worth(self, now: Mapping[str, int], then: Mapping[str, int]) -> bool:
        """A worker's time goes with its samples."""
        longest = max(1 / pace for pace in self._paces.values())
        coming = max(then[one] / (max(1, now[one]) * pace) for one, pace in self._paces.items())
        return coming <= WORTH * longest

    def forget(self) -> None:
        """The ring or the shares have changed: what was slow may not be so any more."""
        self._slow_for.clear()
        self._fast_for.clear()

    def _explained(self, worker: str) -> Straggler:
        spent = next(one for one in self._spent if one.worker == worker)
        pace = self._paces[worker]
        cause = self._cause(spent)
        where = {
            "data": f"its samples take {1000 * spent.data_s:.0f} ms of each step",
            "compute": f"it computes {1000 * spent.compute_s:.0f} ms in each step",
            "host": f"as do all on {spent.host}",
        }[cause]
        reason = f"{worker} works at {pace:.2f} of the median pace, below {self.slow:g}: {where}"
        return Straggler(worker, pace, cause, reason)

    def _cause(self, spent: Spent) -> str:
        """The host, if all its workers are slow and others are not; else what the worker spends the more time on."""
        slow, there = self._slow_on_hosts()
        several = there[spent.host] > 1 and len(there) > 1
        if several and slow[spent.host] == there[spent.host]:
            return "host"
        usual = _medians(self._spent)
        return "data" if spent.data_s - usual["data"] > spent.compute_s - usual["compute"] else "compute"

    def _slow_on_hosts(self) -> tuple[Counter[str], Counter[str]]:
        there = Counter(one.host for one in self._spent)
        slow = Counter(one.host for one in self._spent if self._paces[one.worker] < self.slow)
        return slow, there


def _own_s(spent: Spent) -> float:
    """What a worker needs for a step by itself; one of which nothing is known needs for ever.

    One that waits for the others nearly all the time may seem to need no time at all: it is as fast as can be told.
    """
    own_s = spent.compute_s + spent.data_s
    return max(own_s, LEAST * (own_s + spent.wait_s)) or math.inf


def _medians(spent: Sequence[Spent]) -> dict[str, float]:
    return {
        "data": median(one.data_s for one in spent),
        "compute": median(one.compute_s for one in spent),
    }
