"""The data of a job of one worker, without a job: what a generator needs, on a real ledger."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from edl.core.ledger import Ledger
from edl.errors import TimedOut, UsageError
from edl.protocol.data import DataSpec, Lease

HORIZON_STEPS = 6
PATIENCE_S = 5.0


class NeverCut:
    """The part of a feed whose leases stay as they are."""

    def hand_out(self, lease: Lease, step: int) -> bool:  # noqa: ARG002 - the port's names
        return True

    def renewed(self, leases: Sequence[Lease], step: int, *, wait: bool) -> tuple[Lease, ...] | None:  # noqa: ARG002
        return tuple(leases)


class SoloFeed(NeverCut):
    """One worker is the whole job. Leases come at once, as a leader would grant them."""

    def __init__(self) -> None:
        self._ledger: Ledger | None = None
        self.committed = 0
        self.newcomer = False
        self.asked = 0
        self._changed = threading.Condition()

    @property
    def ledger(self) -> Ledger:
        """Of what was opened."""
        assert self._ledger is not None
        return self._ledger

    def open(self, spec: DataSpec) -> None:
        with self._changed:
            if self._ledger is None:
                self._ledger = Ledger(spec, ["w"])
            if spec.differences(self.ledger.spec):
                raise UsageError(f"the job trains on something else: {spec.differences(self.ledger.spec)}")
            self.ledger.extend(spec.epochs)
            self._changed.notify_all()

    def next_lease(self, after: int = 0, *, wait: bool = True) -> Lease | None:
        with self._changed:
            if not wait:
                return None if self.newcomer else self._after(after)
            self.asked += 1
            self._changed.notify_all()
            self._wait_for(lambda: not self.newcomer and (self._after(after) is not None or self._dry()))
            return self._after(after)

    def loaded(self, nanoseconds: int) -> None:
        """Nobody asks."""

    def rehearsing(self) -> bool:
        return self.newcomer

    def step(self) -> int:
        return self.committed + 1

    def commit(self) -> None:
        """The step that is worked on is trained."""
        with self._changed:
            self.committed += 1
            self.ledger.commit(self.committed)
            self._changed.notify_all()

    def enter(self, step: int = 0) -> None:
        """A newcomer's first switch."""
        with self._changed:
            self.newcomer, self.committed = False, step
            self._changed.notify_all()

    def wait_asked(self, times: int) -> None:
        """Until so many leases were asked for."""
        with self._changed:
            self._wait_for(lambda: self.asked >= times)

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        if not self._changed.wait_for(condition, PATIENCE_S):
            raise TimedOut(f"not within {PATIENCE_S:g} s")

    def _after(self, number: int) -> Lease | None:
        self.ledger.grant(self.committed + HORIZON_STEPS)
        lease = next(iter(self.ledger.leases("w", number)), None)
        return None if lease is None or lease.epoch >= self.ledger.spec.epochs else lease

    def _dry(self) -> bool:
        return self.ledger.fully_leased and self.committed >= self.ledger.wanted_step
