"""Detection of a worker that holds up the others. After Or, Zhang and Freedman (MLSys 2020), its throughput while it
computes is below 0.8 of the median's, as a moving average over batches.

Owns: each worker's pace and the verdict. Does not own: measuring, nor replacing.

All workers of a ring take the same time for a step; a slow worker shows by the time that the others wait for it. So a
worker's own time is the time of a step less the time spent waiting for peers.
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
LEAST: Final = 0.01  # of a step: least own time of a worker; clocks of different workers cannot resolve less
WORTH: Final = 0.95  # of the time of a step: most that a step may take with other shares to justify them


class Spent(msgspec.Struct, frozen=True):
    """The time that a worker spent in some batches, by activity, in seconds per batch."""

    worker: str
    host: str
    compute_s: float
    data_s: float
    wait_s: float


@dataclass(frozen=True, slots=True)
class Straggler:
    worker: str
    pace: float
    cause: str  # "data", "compute" or "host"
    reason: str


@dataclass(frozen=True, slots=True)
class UnevenPaces:
    """Shares of the batch with which all workers would finish a step at the same time."""

    shares: dict[str, float]
    pace: float  # pace of the worker that is furthest off the median
    reason: str


@dataclass(slots=True)
class WorkerPaces:
    """Moving averages of how fast workers are, relative to the median of all."""

    slow: float = SLOW
    batches: int = 50  # batches for which a worker must have been slow
    _paces: dict[str, float] = field(default_factory=dict)
    _slow_for: dict[str, int] = field(default_factory=dict)
    _fast_for: dict[str, int] = field(default_factory=dict)
    _spent: tuple[Spent, ...] = ()

    def take(self, spent: Iterable[Spent], batches: int) -> None:
        """Take the times of all workers of the ring in the same `batches` batches. A worker that is not among them is
        forgotten.
        """
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
        return dict(self._paces)

    def verdict(self) -> Straggler | None:
        """Return the slowest of the workers that have been slow for long enough; never the only worker."""
        if len(self._paces) < FEWEST:
            return None
        late = [worker for worker, batches in self._slow_for.items() if batches >= self.batches]
        worker = min(late, key=lambda worker: (self._paces[worker], worker), default=None)
        return None if worker is None else self._explained(worker)

    def uneven(self, shares: Mapping[str, float], dealt: Dealt) -> UnevenPaces | None:
        """Return better shares if a worker has been slow, or idle for lack of samples, for long enough with its share,
        and a step would take less time with other shares, in whole samples. `dealt` returns the samples of each worker
        for given shares.
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
        return UnevenPaces(better, pace, reason) if self._is_worth(dealt(shares), dealt(better)) else None

    def _is_worth(self, now: Mapping[str, int], then: Mapping[str, int]) -> bool:
        """Tell whether a step would be short enough with other samples, as a worker's time is proportional to its
        samples.
        """
        longest = max(1 / pace for pace in self._paces.values())
        coming = max(then[one] / (max(1, now[one]) * pace) for one, pace in self._paces.items())
        return coming <= WORTH * longest

    def forget(self) -> None:
        """Forget which workers were slow, because the ring or the shares have changed."""
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
        """Return the cause: the host, if all its workers are slow and others are not; else the activity whose time
        exceeds the median more.
        """
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
    """Return the time that a worker needs for a step by itself; infinity if nothing is known.

    A worker that waits for the others nearly all the time may seem to need no time at all: `LEAST` of a step is
    assumed.
    """
    own_s = spent.compute_s + spent.data_s
    return max(own_s, LEAST * (own_s + spent.wait_s)) or math.inf


def _medians(spent: Sequence[Spent]) -> dict[str, float]:
    return {
        "data": median(one.data_s for one in spent),
        "compute": median(one.compute_s for one in spent),
    }
