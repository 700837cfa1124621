"""The current use of each worker's time, from the usage that its daemon reports now and then. Pure."""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

from edl.protocol.record import Status, WorkerStatus
from edl.protocol.tally import Usage

WINDOW_S: Final = 10.0
SLOW: Final = 0.8  # of the median pace, as `edl.policy.stragglers` has it


class TimeShare(msgspec.Struct, frozen=True):
    """The parts of a worker's time, as fractions of 1."""

    compute: float
    data: float
    wait: float


class TimeShares:
    """The spendings of a job's members."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[Usage]] = {}

    def take(self, status: Status) -> None:
        """Add the usage in a status. Workers that are no longer members are forgotten."""
        here = {worker.id: worker.usage for worker in status.workers if worker.usage is not None}
        self._seen = {worker: self._seen.get(worker, deque()) for worker in here}
        for worker, usage in here.items():
            seen = self._seen[worker]
            if seen and usage.at < seen[-1].at:  # another daemon reports for the worker
                seen.clear()
            if not seen or usage.at > seen[-1].at:
                seen.append(usage)
            while len(seen) > 2 and usage.at - seen[0].at > WINDOW_S:
                seen.popleft()

    def of(self, worker: str) -> TimeShare | None:
        """Return a worker's spending, or None if too few reports have come yet."""
        seen = self._seen.get(worker)
        if not seen or len(seen) < 2:
            return None
        first, last = seen[0], seen[-1]
        parts = [last.computed_s - first.computed_s, last.loaded_s - first.loaded_s, last.waited_s - first.waited_s]
        total = sum(parts)
        return None if total <= 0 else TimeShare(*(part / total for part in parts))


def verdict(worker: WorkerStatus, spending: TimeShare | None) -> str:
    """Say why a worker is slow; "" if it is not slow."""
    if worker.rank is None or worker.pace >= SLOW:
        return ""
    cause = "" if spending is None else ("loads samples" if spending.data > spending.compute else "computes")
    return f"slow: {worker.pace:.2f} of the median pace" + (f", as it {cause} for long" if cause else "")
