"""The leases that a trainer holds, between the pipe that brings them and the generators that consume them.

Owns: which leases have come, and what each step weighs by them. Does not own: which samples they mean
(`edl.trainer.data.shards`), nor who grants them (`edl.core.ledger`). Thread-safe: a generator may run in another
thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

from edl.core.seat import NEVER
from edl.protocol.assignment import Share
from edl.protocol.data import Lease

POLL_S = 0.1


class LeaseFeed:
    """The leases of one worker in order of their numbers, and the totals of the present generation."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._leases: dict[int, Lease] = {}
        self._share: Share | None = None
        self._newest = (0, 0)
        self._epochs = 0  # wanted here
        self._closed = False
        self._handed_out = 0  # the last step whose samples the script has been given
        self._recut = 0  # the one under way (`edl.core.recut`)
        self._mark = NEVER  # while it is, nothing beyond this step is handed out

    def adopt(self, share: Share, stamp: tuple[int, int], at_work: int = 0) -> None:
        """A share of the present generation; `stamp` is the term and version of its orders. Old news is dropped.

        `at_work`: the step that is worked on. Its samples may be asked for already, so they are handed out in any case.
        """
        with self._changed:
            if stamp < self._newest:
                return
            self._newest, self._share = stamp, share
            held = _left_of(self._leases.values(), share.leases, share.covered_step)
            self._leases = {lease.number: lease for lease in (*held, *share.leases)}
            if share.recut != self._recut:
                self._recut = share.recut
                self._mark = max(share.mark, self._handed_out, at_work) if share.recut else NEVER
            self._changed.notify_all()

    def want(self, epochs: int) -> None:
        """This worker wants so many epochs: a share that was made for fewer says nothing about the end.

        Leases of later ones are kept back until somebody wants these, too.
        """
        with self._changed:
            self._epochs = epochs
            self._changed.notify_all()

    def forget_before(self, step: int) -> None:
        """Drop leases that end before `step`."""
        with self._changed:
            self._leases = {number: lease for number, lease in self._leases.items() if lease.until_step >= step}

    def close(self) -> None:
        """No more leases come."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def marked(self) -> tuple[int, int]:
        """The recut under way, and the step that nothing is handed out beyond; zeros without one."""
        with self._changed:
            return (self._recut, self._mark) if self._recut else (0, 0)

    def holds_at(self, step: int) -> bool:
        """What follows `step`, here or in another ring, is about to be decided."""
        with self._changed:
            return bool(self._recut) and step >= self._mark

    @property
    def batch(self) -> int:
        """Samples of a full step, of all workers together; 0 before that is known."""
        return 0 if self._share is None else self._share.batch

    def hand_out(self, lease: Lease, step: int) -> bool:
        """The samples that `lease` gives `step` are about to be handed out. False: they must not be, now or ever."""
        with self._lock:  # of each step: past the methods of the condition, which are Python's
            known = self._leases.get(lease.number)
            if step > self._mark or (known is not lease and known != lease):
                return False
            self._handed_out = max(self._handed_out, step)
            return True

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
            held = tuple(self._leases[number] for number in sorted(self._leases))
            trained = _left_of(leases, held, self._share.covered_step if self._share else NEVER)
            return (*trained, *(self._leases[one.number] for one in leases if one.number in self._leases))

    def there_after(self, number: int) -> Lease | None:
        """The lease after `number`, if it is here."""
        with self._changed:
            later = [candidate for candidate in self._leases if candidate > number]
            lease = self._leases[min(later)] if later else None
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

    def covers(self, step: int) -> bool:
        """What everybody trains in `step` is known."""
        share = self._share
        return share is not None and step <= min(share.covered_step, self._mark)

    def ends_before(self, step: int) -> bool:
        """There is no data for `step`, and will be none."""
        share, lease = self._share, self._at(step)
        if self._closed or (lease is not None and self._is_beyond(lease)):
            return True
        if share is None or share.epochs < self._epochs:
            return False
        return share.last and step > share.covered_step

    def weight(self, step: int) -> float:
        """This worker's samples in `step` over all workers' samples. Only for a covered step."""
        lease, total = self._at(step), self.samples(step)
        return lease.share(step) / total if lease is not None and total else 0.0

    def own(self, step: int) -> int | None:
        """This worker's samples in `step`: 0 for stand-ins. None: that is not known here."""
        lease = self._at(step)
        return None if lease is None else lease.share(step)

    def samples(self, step: int) -> int:
        """All workers' in `step`. Only for a covered step that is not committed yet: then shares forget it."""
        totals = self._share.totals if self._share is not None else ()
        return next((total.samples for total in totals if step <= total.until_step), 0)

    def constant_until(self, step: int) -> int:
        """A step up to which `weight` stays what it is in `step`. Each step of stand-ins is looked at by itself."""
        share, lease = self._share, self._at(step)
        if share is None or lease is None or not lease.share(step):
            return step
        run = next((total.until_step for total in share.totals if step <= total.until_step), step)
        return max(step, min(run, _run_of_share(lease, step), self._mark))

    def epoch(self, step: int) -> int | None:
        """The pass over the data that `step` belongs to; None when that is not known here."""
        lease = self._at(step)
        return None if lease is None or self._is_beyond(lease) else lease.epoch

    def ends_pass(self, step: int) -> bool:
        """It is the last step of its epoch (or of the stream), of all members of the roster alike."""
        lease = self._at(step)
        return lease is not None and lease.final and step == lease.until_step

    def _is_beyond(self, lease: Lease) -> bool:
        """It is leased on speculation: nobody is known to have begun its epoch."""
        share = self._share
        return lease.epoch >= max(self._epochs, 0 if share is None else share.epochs)

    def _at(self, step: int) -> Lease | None:
        with self._changed:
            return next((x for x in self._leases.values() if x.after_step < step <= x.until_step), None)


def _left_of(leases: Iterable[Lease], newer: Sequence[Lease], covered_step: int) -> tuple[Lease, ...]:
    """Of `leases`, those before all of `newer`, which are in order: they are trained, as far as they were not cut.

    What was leased on speculation, and not begun, may have been taken back.
    """
    number, after_step = (newer[0].number, newer[0].after_step) if newer else (NEVER, covered_step)
    return tuple(one.up_to(after_step) for one in leases if one.number < number and one.after_step < after_step)


def _run_of_share(lease: Lease, step: int) -> int:
    """The last step of `lease` with the same share as `step`, which has one: full batches come first."""
    return max(step, lease.after_step + len(lease) // lease.batch)
