"""The lease buffer of a trainer: the pipe's thread fills it, the training thread weighs by it, pipelines read by it.

Owns: the lock around it, and waiting for leases. Does not own: what leases say (`edl.core.worker.lease_buffer`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from edl.core.worker.lease_buffer import LeaseBuffer
from edl.protocol.assignment import Share
from edl.protocol.data_nouns import Lease

POLL_S = 0.1


class SharedLeases(LeaseBuffer):
    """A lease buffer for all threads of a trainer. Reading needs no lock: its parts are replaced, never changed."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)

    def adopt(self, share: Share, stamp: tuple[int, int], at_work: int = 0) -> None:
        with self._changed:
            super().adopt(share, stamp, at_work)
            self._changed.notify_all()

    def want(self, epochs: int, *, by_sample: bool = False) -> None:
        with self._changed:
            super().want(epochs, by_sample=by_sample)
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
        with self._lock:  # of each step: past the methods of the condition, which are Python's, and past `super`
            return LeaseBuffer.hand_out(self, lease, step)

    def wait_offered(self, step: int | None, committed: Callable[[], int], goes_on: Callable[[], bool]) -> bool:
        """Wait until samples of `step` may be handed out, or of the first uncommitted step if that is later.

        The others may go on beyond `step` without this worker. False: there are none, and all is trained; until then a
        fault may bring samples back. Between two looks `goes_on` is asked, and may raise; False, too, once it says no.
        """
        while True:
            with self._changed:
                coming = committed() + 1
                if self.offers(max(step or 0, coming)):
                    return True
                if self.ends_before(coming):
                    return False
                self._changed.wait(POLL_S)
            if not goes_on():
                return False
