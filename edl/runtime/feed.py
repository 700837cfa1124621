"""The leases that a trainer holds, between the pipe that brings them and the generators that consume them.

Owns: which leases have come, and what each step consumes by them. Does not own: which samples they mean
(`edl.runtime.shards`), nor who grants them (`edl.core.ledger`). Thread-safe: generators may run in threads of their own.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable

from edl.protocol.assignment import Share
from edl.protocol.data import Lease

POLL_S = 0.1


class LeaseFeed:
    """The leases of one worker in order of their numbers, and the totals of the present generation."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._leases: dict[int, Lease] = {}
        self._share: Share | None = None
        self._newest = (0, 0)
        self._drawn = 0  # number of the newest lease that a generator took
        self._closed = False

    def adopt(self, share: Share, stamp: tuple[int, int]) -> None:
        """A share of the present generation; `stamp` is the term and version of its orders. Old news is dropped."""
        with self._changed:
            if stamp < self._newest:
                return
            self._newest, self._share = stamp, share
            for lease in share.leases:
                self._leases.setdefault(lease.number, lease)
            self._changed.notify_all()

    def forget_before(self, step: int) -> None:
        """Drop leases that were drawn and whose last step is behind `step`."""
        with self._changed:
            kept = {n: x for n, x in self._leases.items() if n > self._drawn or x.after_step + x.steps >= step}
            self._leases = kept

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def draw(self, while_waiting: Callable[[], None]) -> Lease | None:
        """The next lease; None when no more will come. Calls `while_waiting` now and then."""
        while True:
            with self._changed:
                later = [number for number in self._leases if number > self._drawn]
                if later:
                    self._drawn = min(later)
                    return self._leases[self._drawn]
                if self._closed or (self._share is not None and self._share.last):
                    return None
                self._changed.wait(POLL_S)
            while_waiting()

    def covers(self, step: int) -> bool:
        """What everybody trains in `step` is known."""
        share = self._share
        return share is not None and step <= share.covered_step

    def ends_before(self, step: int) -> bool:
        """There is no data for `step`, and will be none."""
        share = self._share
        return self._closed or (share is not None and share.last and step > share.covered_step)

    def weight(self, step: int) -> float:
        """This worker's samples in `step` over all workers' samples. Only for a covered step."""
        total = self._total(step)
        return self._own(step) / total if total else 0.0

    def constant_until(self, step: int) -> int:
        """A step up to which `weight` stays what it is in `step`."""
        share, lease = self._share, self._at(step)
        if share is None or lease is None:
            return step
        run = next((total.until_step for total in share.totals if step <= total.until_step), step)
        end = lease.after_step + lease.steps
        short = len(lease) < lease.steps * lease.batch
        return min(run, max(step, end - 1 if short else end))

    def epoch(self, step: int) -> int | None:
        """The epoch of this worker's first sample in `step`; None when it has none."""
        lease = self._at(step)
        if lease is None:
            return None
        left = (step - lease.after_step - 1) * lease.batch
        for piece in lease.ranges:
            if left < len(piece):
                return piece.epoch
            left -= len(piece)
        return lease.ranges[-1].epoch if lease.ranges else None

    def _at(self, step: int) -> Lease | None:
        with self._changed:
            return next((x for x in self._leases.values() if x.after_step < step <= x.after_step + x.steps), None)

    def _own(self, step: int) -> int:
        lease = self._at(step)
        if lease is None:
            return 0
        left = len(lease) - (step - lease.after_step - 1) * lease.batch
        return max(0, min(lease.batch, left))

    def _total(self, step: int) -> int:
        share = self._share
        if share is None:
            return 0
        index = bisect_left([total.until_step for total in share.totals], step)
        return share.totals[index].samples if index < len(share.totals) else 0
