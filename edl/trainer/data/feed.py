"""The leases that a trainer holds, between the pipe that brings them and the generators that consume them.

Owns: the lock around them, and waiting for them: a generator may run in another thread. Does not own: what they say
(`edl.core.worker.lease_buffer`), which samples they mean (`edl.trainer.data.shards`), nor who grants them
(`edl.core.ledger`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from edl.core.seat import NEVER
from edl.core.worker.lease_buffer import LeaseBuffer, left_of
from edl.protocol.assignment import Share
from edl.protocol.data import Lease

POLL_S = 0.1


class LeaseFeed(LeaseBuffer):
    """The lease buffer of a trainer, for all its threads. What only looks needs no lock."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)

    def adopt(self, share: Share, stamp: tuple[int, int], at_work: int = 0) -> None:
        with self._changed:
            super().adopt(share, stamp, at_work)
            self._changed.notify_all()

    def want(self, epochs: int) -> None:
        with self._changed:
            super().want(epochs)
            self._changed.notify_all()

    def forget_before(self, step: int) -> None:
        with self._changed:
            super().forget_before(step)

    def close(self) -> None:
        with self._changed:
            super().close()
            self._changed.notify_all()

    @property
    def marked(self) -> tuple[int, int]:
        with self._changed:
            return super().marked

    def holds_at(self, step: int) -> bool:
        with self._changed:
            return super().holds_at(step)

    def hand_out(self, lease: Lease, step: int) -> bool:
        with self._lock:  # of each step: past the methods of the condition, which are Python's, and of `super`
            return LeaseBuffer.hand_out(self, lease, step)

    def renewed(self, leases: Sequence[Lease], step: int, *, wait: bool) -> tuple[Lease, ...] | None:
        """`leases` as they are now, without those that were taken back. None: `step`, which is about to be handed out,
        lies beyond the mark of a recut under way, where they may yet change; with `wait`, only after a while.

        Up to the mark they do not, and the ring that lifts it may stand only after these steps.
        """
        with self._changed:
            if step > self._mark and wait:
                self._changed.wait(POLL_S)
            if step > self._mark:
                return None
            trained = left_of(leases, self.leases, self._share.covered_step if self._share else NEVER)
            return (*trained, *(self._leases[one.number] for one in leases if one.number in self._leases))

    def there_after(self, number: int) -> Lease | None:
        """The lease after `number`, if it is here."""
        with self._changed:
            lease = next((one for one in self._leases.values() if one.number > number), None)
            return None if lease is None or self._is_beyond(lease) else lease

    def next_after(self, number: int, committed: Callable[[], int], while_waiting: Callable[[], None]) -> Lease | None:
        """The lease after `number`. None when all is leased and trained: until then a fault may bring samples back."""
        while True:
            with self._changed:
                if (lease := self.there_after(number)) is not None:
                    return lease
                if self.ends_before(committed() + 1):
                    return None
                self._changed.wait(POLL_S)
            while_waiting()
