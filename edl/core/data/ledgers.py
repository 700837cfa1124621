"""Make the ledger that a source needs: by positions, or a stream's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from edl.core.data.lease_holder import LeaseHolder, batches_of
from edl.core.data.rounds import evenly, whole_batches
from edl.core.data.sample_ledger import Ledger, leasable
from edl.core.data.stream_parts import StreamParts
from edl.core.data.unassigned import Unassigned
from edl.protocol.data_nouns import DataCounts, DataSpec, Deal, Lease, LedgerSnapshot, ShardPart, StreamCounts

# A source that has a length has positions 0 to total-1 in each epoch.
# How long a round is follows from how fast steps are; who trains what must not. So samples are *dealt* for a number of
# steps that does not: a run of positions for each member, in order of rank. A round leases the next steps of these
# runs, and what is dealt and not leased is unassigned as before. The runs are not kept, only how many steps of them are
# left: they follow each other in the order of places, so dealing the first unassigned samples for these steps finds
# them again. Where members or batches change, or leases are taken back, the next round deals anew. Each deal is for
# twice as many steps as the one before in its epoch. So it is short where changes follow each other, which leave a
# piece of each run behind; and the rounds that end with a deal are few, however far ahead is leased.


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


# The samples of a stream (`edl.core.data.stream_parts`) are those of the shards that a worker holds. They are not
# dealt: a round is as long as each member that may find more has whole batches at hand, and waits for it; a member
# without anything to read has what it had found before, and then nothing.


LONGEST_ROUND = 64  # steps: a lease has a piece of a shard for each


class StreamLedger(Ledger):
    _pool: StreamParts

    @staticmethod
    def _pool_of(spec: DataSpec, snapshot: LedgerSnapshot | None = None) -> StreamParts:
        return StreamParts(spec, leasable(spec), None if snapshot is None else snapshot.stream)

    def snapshot(self) -> LedgerSnapshot:
        return msgspec.structs.replace(super().snapshot(), stream=self._pool.snapshot())

    # ------------------------------------------------------------------------------------------------ what is so

    @property
    def wanted(self) -> int:
        return self._pool.handed_out + self._pool.count(self._spec.epochs - 1)

    @property
    def reading(self) -> tuple[str, ...]:
        if self._pool.virtual:
            return ()
        pool, limit = self._pool, self._limit(self._next_epoch())
        reading = (worker for worker in self._readers() if pool.is_awaited(worker, limit))
        return tuple(worker for worker in reading if pool.available(worker, limit) < self._members[worker].batch)

    @property
    def awaited_lanes(self) -> tuple[int, ...]:
        if not self._pool.virtual or not self.batch:
            return ()
        return self._pool.awaited_lanes(self.batch, self._limit(self._next_epoch()))

    @property
    def has_nothing(self) -> bool:
        return self._pool.has_nothing

    def has_begun(self, part: int) -> bool:
        return part < self._pool.begun

    def facts(self) -> tuple[ShardPart, ...]:
        return self._pool.parts

    def counts(self) -> DataCounts:
        epoch = min(self._ended, self._spec.epochs - 1)
        leased = sum(len(piece) for lease in self._all_leases() for piece in lease.left(self._step))
        unassigned = self._pool.count(self._spec.epochs - 1)
        return DataCounts(
            epoch,
            self._pool.handed_out + unassigned,
            self._pool.handed_out - leased,
            leased,
            unassigned,
            self._covered - self._step,
            *self._amiss(),
            stream=StreamCounts(*self._pool.shards_in(epoch)),
        )

    def _may_overtake_unassigned(self) -> bool:
        return True

    def _unassigned_places(self) -> Iterator[tuple[int, int]]:
        return self._pool.places()

    def _able(self) -> frozenset[str] | None:
        pool, until = self._pool, self._spec.epochs - 1
        return frozenset(w for w, one in self._members.items() if one.batch and pool.available(w, until) >= one.batch)

    # ---------------------------------------------------------------------------------------------- what happens

    def hand_over(self, roster: Sequence[str]) -> None:
        before = self.roster
        super().hand_over(roster)
        if len(roster) == len(before):
            self._pool.rename(dict(zip(before, roster, strict=True)))

    def commit(self, step: int) -> tuple[int, ...]:
        ended = super().commit(step)
        self._pool.settle(self._untrained())
        return ended

    def learn(self, told: Iterable[ShardPart]) -> bool:
        ended = self._pool.learn(told)
        self._pool.settle(self._untrained())
        self._outdated_until = self._last_outdated()
        moved = self._pool.assign(self._readers())
        if ended:
            self._end_epochs()
        return ended or moved

    def grant(self, until_step: int) -> dict[str, tuple[Lease, ...]]:
        self._pool.assign(self._readers())
        return super().grant(until_step)

    def extend(self, epochs: int) -> None:
        super().extend(epochs)
        self._end_epochs()  # all shards may be known to have nothing in it

    # -------------------------------------------------------------------------------------------------- leasing

    def _grant_round(self, steps: int) -> bool:
        """Lease the next steps, as many as each member that may find more has whole batches for."""
        pool, epoch = self._pool, self._next_epoch()
        limit = self._limit(epoch)
        if not self._members or epoch >= pool.epochs:
            return False
        if pool.virtual:
            return self._grant_by_lane(steps, epoch)
        spared = self._spared if self._spared and self._covered < self._spared_until else frozenset[str]()
        if spared:
            steps = min(steps, self._spared_until - self._covered)
        steps, counts = min(steps, LONGEST_ROUND), dict[str, int]()
        for worker, member in self._members.items():
            found = 0 if worker in spared or not member.batch else pool.available(worker, limit)
            whole = found // member.batch if found else 0
            if worker not in spared and member.batch and pool.is_awaited(worker, limit):
                steps = min(steps, whole)
            elif found:
                steps = min(steps, max(1, whole))
            counts[worker] = found
        counts = {worker: min(found, steps * self._members[worker].batch) for worker, found in counts.items()}
        if not any(counts.values()):
            return False
        self._epoch, self._closed = epoch, False
        self._give(self._members, counts, Lease(0, self._covered, steps, 0, (), epoch, False))
        self._covered += steps
        if pool.first_epoch > limit:
            self._close()
        return True

    def _grant_by_lane(self, steps: int, epoch: int) -> bool:
        """Lease the next steps to virtual workers, as many as are known; one that is short is the last."""
        [member] = self._members.values()
        most, limit = max(1, LONGEST_ROUND * 8 // max(8, self._pool.virtual)), self._limit(epoch)
        given, ranges = self._pool.take_by_lane(member.batch, min(steps, most), limit)
        if not given:
            return False
        self._epoch, self._closed = epoch, False
        self._lease(member, Lease(0, self._covered, given, 0, (), epoch, by_shard=True), ranges)
        self._covered += given
        if self._pool.first_epoch > limit:
            self._close()
        return True

    def _give_beside(self, newcomers: Sequence[str], form: Lease) -> None:
        self._give(newcomers, {}, form)

    def _give(self, workers: Iterable[str], counts: Mapping[str, int], form: Lease) -> None:
        """Lease to each worker its count of items of the shards that it holds; none where that is not said."""
        limit = self._limit(form.epoch)
        for worker in workers:
            member = self._members[worker]
            self._lease(member, form, self._pool.take(worker, counts.get(worker, 0), limit, member.batch))

    def _close(self) -> None:
        """Note that the newest round has taken the last of its epoch."""
        self._closed = True
        for member in self._members.values():
            member.leases = (*member.leases[:-1], msgspec.structs.replace(member.leases[-1], final=True))

    def _readers(self) -> Sequence[str]:
        return [worker for worker, member in self._members.items() if member.batch]


def new_ledger(
    spec: DataSpec, roster: Sequence[str] = (), step: int = 0, batches: Sequence[int] | None = None
) -> Ledger:
    return _kind(spec)(spec, roster, step, batches)


def restored_ledger(snapshot: LedgerSnapshot) -> Ledger:
    return _kind(snapshot.spec).restore(snapshot)


def _kind(spec: DataSpec) -> type[Ledger]:
    return StreamLedger if spec.shards else PositionLedger
