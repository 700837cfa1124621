"""The data of a job of one worker, without a job: what a generator needs, on a real ledger."""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from edl.core.data.ledgers import new_ledger
from edl.core.data.sample_ledger import Ledger
from edl.core.worker.lease_buffer import LeaseBuffer
from edl.errors import TimedOut, UsageError
from edl.protocol.assignment import Share
from edl.protocol.data_nouns import DataSpec, ShardPart
from edl.trainer.data.job_port import Rehearsals

HORIZON_STEPS = 6
PATIENCE_S = 5.0


def share_of(ledger: Ledger, worker: str, generation: int = 1) -> Share:
    """Return the share that a leader would grant `worker` now."""
    epochs, last = ledger.spec.epochs, ledger.fully_leased
    leases, totals = ledger.leases(worker), ledger.totals()
    share = Share(generation, ledger.step, leases, totals, ledger.covered_step, epochs, last)
    stream = ledger.snapshot().stream
    return share if stream is None else msgspec.structs.replace(share, parts=stream.parts)


class SoloFeed:
    """Feed of a worker that is the whole job. Leases come at once, up to step `last`, if any."""

    def __init__(self, last: int | None = None) -> None:
        self._last = last
        self.horizon_steps = HORIZON_STEPS
        self.leases = LeaseBuffer()
        self._ledger: Ledger | None = None
        self.committed = 0
        self.rehearsals = Rehearsals()
        self.asked = 0
        self.unended: list[int] = []  # steps beyond which a script has gone on
        self._changed = threading.Condition()
        self._told = 0  # shares

    @property
    def ledger(self) -> Ledger:
        assert self._ledger is not None
        return self._ledger

    def open(self, spec: DataSpec) -> None:
        with self._changed:
            if self._ledger is None:
                self._ledger = new_ledger(spec, ["w"])
            if spec.differences(self.ledger.spec):
                raise UsageError(f"the job trains on something else: {spec.differences(self.ledger.spec)}")
            self.ledger.extend(spec.epochs)
            self.leases.want(spec.epochs, by_sample=spec.by_sample and spec.whole_epochs)
            self._changed.notify_all()

    def found(self, parts: tuple[ShardPart, ...]) -> None:
        with self._changed:
            self.ledger.learn(parts)
            self._offers(None)
            self._changed.notify_all()

    def begin_batch(self) -> None:
        """Do nothing, as there is one state only."""

    def await_samples(self, step: int | None, *, wait: bool = True) -> bool:
        with self._changed:
            if not wait:
                return self._offers(step)
            self.asked += 1
            self._changed.notify_all()
            self._wait_for(lambda: self._offers(step) or self._dry())
            return self._offers(step)

    def loaded(self, nanoseconds: int) -> None: ...

    def check_ended(self, step: int) -> None:
        self.unended.append(step)

    def step(self) -> int:
        return self.committed + 1

    def commit(self) -> None:
        with self._changed:
            self.committed += 1
            self.ledger.commit(self.committed)
            self._changed.notify_all()

    def enter(self, step: int = 0) -> None:
        with self._changed:
            self.rehearsals.end_all()
            self.committed = step
            self._changed.notify_all()

    def wait_asked(self, times: int) -> None:
        with self._changed:
            self._wait_for(lambda: self.asked >= times)

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        if not self._changed.wait_for(condition, PATIENCE_S):
            raise TimedOut(f"not within {PATIENCE_S:g} s")

    def _offers(self, step: int | None) -> bool:
        if self.rehearsals.left:
            return False
        until_step = self.committed + self.horizon_steps
        self.ledger.grant(until_step if self._last is None else min(until_step, self._last))
        self._told += 1
        self.leases.adopt(share_of(self.ledger, "w"), (1, self._told))
        return self.leases.offers(max(step or 0, self.step()))

    def _dry(self) -> bool:
        return not self.rehearsals.left and self.leases.ends_before(self.step())
