"""Cut the samples of a source that has a length into rounds: positions 0 to total-1 in each epoch.

Owns: the deals that rounds are taken from, and what is unassigned. Does not own: leases, and what follows from them
(`edl.core.data.sample_ledger`).

How long a round is follows from how fast steps are; who trains what must not. So samples are *dealt* for a number of
steps that does not: a run of positions for each member, in order of rank. A round leases the next steps of these runs,
and what is dealt and not leased is unassigned as before. The runs are not kept, only how many steps of them are left:
they follow each other in the order of places, so dealing the first unassigned samples for these steps finds them again.
Where members or batches change, or leases are taken back, the next round deals anew. Each deal is for twice as many
steps as the one before in its epoch. So it is short where changes follow each other, which leave a piece of each run
behind; and the rounds that end with a deal are few, however far ahead is leased.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from edl.core.data.lease_holder import LeaseHolder, batches_of
from edl.core.data.rounds import evenly, whole_batches
from edl.core.data.sample_ledger import Ledger, leasable
from edl.core.data.unassigned import Unassigned
from edl.protocol.data_nouns import DataCounts, DataSpec, Deal, Lease, LedgerSnapshot

FIRST_DEAL = 64  # steps
LONGEST_DEAL = 16384


class PositionLedger(Ledger):
    _pool: Unassigned

    @staticmethod
    def _pool_of(spec: DataSpec, snapshot: LedgerSnapshot | None = None) -> Unassigned:
        if snapshot is None:
            return Unassigned(spec.total, leasable(spec))
        return Unassigned(spec.total, leasable(spec), snapshot.frontier, snapshot.returned)

    def snapshot(self) -> LedgerSnapshot:
        return msgspec.structs.replace(super().snapshot(), frontier=self._pool.frontier, returned=self._pool.returned)

    # ------------------------------------------------------------------------------------------------ what is so

    @property
    def wanted(self) -> int:
        return self._spec.total * self._spec.epochs

    def counts(self) -> DataCounts:
        epoch, total = min(self._ended, self._spec.epochs - 1), self._spec.total
        unassigned = self._pool.count_in(epoch)
        left = (piece for lease in self._all_leases() for piece in lease.left(self._step))
        leased = sum(len(piece) for piece in left if piece.epoch == epoch)
        ahead = self._covered - self._step
        return DataCounts(epoch, total, total - unassigned - leased, leased, unassigned, ahead, *self._amiss())

    def _may_overtake_unassigned(self) -> bool:
        return bool(self._pool.returned)

    def _unassigned_places(self) -> Iterator[tuple[int, int]]:
        yield from self._pool.returned
        if self._pool.frontier < (end := self._spec.total * self._spec.epochs):
            yield self._pool.frontier, end

    # ------------------------------------------------------------------------------------------------ leasing

    def _grant_round(self, steps: int) -> bool:
        members, epoch = tuple(self._members.values()), self._next_epoch()
        available = self._pool.count(self._limit(epoch))
        if not members or not available or epoch >= self._pool.epochs:
            return False
        deal = self._deal if self._deal.left > 0 else self._next_deal(available, epoch)
        if not deal.left:
            return False
        batches = batches_of(members)
        if self._spared and self._covered < self._spared_until:
            others = [0 if worker in self._spared else one.batch for worker, one in self._members.items()]
            deal, batches = (Deal(self._spared_until - self._covered), others) if any(others) else (deal, batches)
        until, dealt = evenly(available, deal.left, batches)
        steps = min(steps, until)
        counts = [min(count, steps * batch) for count, batch in zip(dealt, batches, strict=True)]
        self._closed = sum(counts) == available
        self._deal = Deal() if self._closed else Deal(until - steps, deal.steps)
        self._epoch = epoch
        self._give(members, dealt, counts, Lease(0, self._covered, steps, 0, (), epoch, self._closed))
        self._covered += steps
        return True

    def _give_beside(self, newcomers: Sequence[str], form: Lease) -> None:
        members = [self._members[worker] for worker in newcomers]
        counts = whole_batches(self._pool.count(self._limit(form.epoch)), form.steps, batches_of(members))
        self._give(members, counts, counts, form)

    def _give(self, members: Sequence[LeaseHolder], dealt: Sequence[int], counts: Sequence[int], form: Lease) -> None:
        """Lease to each member its count of samples: the first of its dealt run; `dealt` has the runs' lengths."""
        for member, ranges in zip(members, self._pool.deal(dealt, counts), strict=True):
            self._lease(member, form, ranges)

    def _next_deal(self, available: int, epoch: int) -> Deal:
        """Return the next deal; it has no steps if the rest must wait until all before it is trained."""
        a_step = sum(batches_of(self._members.values()))
        steps = twice = min(2 * self._deal.steps, LONGEST_DEAL) if self._deal.steps > 0 else FIRST_DEAL
        if not self._spec.whole_epochs:
            # Members hold runs of the stream one after the other: without a bound the last would be epochs ahead.
            steps = min(steps, -(-self._pool.count(epoch) // a_step))
        if self._spec.by_sample:
            last = 1 if self._covered == self._step else 0
            steps = last if available <= a_step else min(steps, (available - 1) // a_step)
        return Deal(steps, twice)
