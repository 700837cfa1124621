"""Assign samples to workers and steps: none is lost and none repeated (I6), whatever happens to workers.

Owns: leases, and what follows from them and the committed step: progress, weights, ends of epochs (I7).
Does not own: which sample stands at a position (`edl.core.data.permutation`), how leases travel, when more are granted.

Samples are granted in *rounds*. A round extends the coverage of all members by the same steps; each gets `batch`
samples in each of them. Only a round that takes the last unassigned samples (it is *final*) ends in a step with fewer,
spread as evenly as the members' batches. So all run dry at the same step, and a committed step says of every lease how
far it is trained; no worker has to report it.

How long a round is follows from how fast steps are; who trains what must not. So samples are *dealt* for a number of
steps that does not: a run of positions for each member, in order of rank. A round leases the next steps of these runs,
and what is dealt and not leased is unassigned as before. The runs are not kept, only how many steps of them are left:
they follow each other in the order of places, so dealing the first unassigned samples for these steps finds them again.
Where members or batches change, or leases are taken back, the next round deals anew. Each deal is for twice as many
steps as the one before in its epoch. So it is short where changes follow each other, which leave a piece of each run
behind; and the rounds that end with a deal are few, however far ahead is leased.

Survivors of a change of roster keep their leases, because their input pipelines have read ahead. A newcomer is given a
lease beside each of theirs that is not yet trained, as far as there are samples: whole batches, then empty shares.
Where these did not suffice, so that it would stand by while the others train what is left, `rebatch` takes back what is
beyond a step that no pipeline has read past, and the next `grant` shares it out. So it is where samples come back that
would wait for epochs after their own, as these are leased already.

Where newcomers have no state yet in the first steps of their ring (`spare`), they have no samples in them either.

How many samples a worker takes in a step may change with the roster. What is leased by then stays as it is until the
same `rebatch`; a newcomer's share beside such leases is empty, so that the batch of all does not grow in between.

Three ways to cut the samples into rounds, by the spec:

- `whole_epochs`: a round belongs to one epoch and never reaches beyond it. Samples returned after their epoch's final
  round go along with the next epoch's, first; the epoch ends when the last of them is trained.
- else one stream: rounds cross the ends of epochs, and only the end of all is final.
- `by_sample`: the script cuts batches itself, so a short one must be its last. The final step is granted only once
  everything before it is trained, which leaves a fault the time of that one step to bring samples back too late.

Where the end is open (`open_ended`, for whole epochs only) a script asks for an epoch when it begins it. What is wanted
by now is leased first; then more on speculation, so that no worker waits for the leader in between. An epoch that no
script begins is never trained, and counts for nothing. One that is trained was begun, whether or not that was told yet.
When the roster changes, leases of epochs that no script can have begun are taken back: so what came back goes out
before them.

The samples of a stream (`edl.core.data.stream_parts`) are those of the shards that a worker holds. They are not dealt:
a round is as long as each member that may find more has whole batches at hand, and waits for it; a member without
anything to read has what it had found before, and then nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise

import msgspec

from edl.core.data.rounds import evenly, sums, whole_batches
from edl.core.data.stream_parts import StreamParts
from edl.core.data.unassigned import Unassigned
from edl.errors import InvalidTransition, UsageError
from edl.protocol.data_nouns import (
    DataCounts,
    DataSpec,
    Deal,
    Lease,
    LedgerSnapshot,
    MemberSnapshot,
    Range,
    ShardPart,
    StreamCounts,
    Totals,
)

FIRST_DEAL = 64  # steps
LONGEST_DEAL = 16384
LONGEST_ROUND = 64  # steps of a stream: a lease has a piece of a shard for each
SPECULATIVE = 64  # epochs beyond those wanted: each costs every member a lease, however short it is
HISTORY = 32  # events kept for the story of an InvalidTransition


class _Holder:
    __slots__ = ("batch", "leases", "number")

    def __init__(self, batch: int, number: int = 0, leases: tuple[Lease, ...] = ()) -> None:
        self.batch = batch  # of what is leased to it from now on; 0 where there are more workers than samples
        self.number = number  # of the newest lease ever given
        self.leases = leases  # not fully trained, in order; () while it has no coverage of its own


class Ledger:
    """State machine of the data. Every mutator either does all it says or raises and changes nothing."""

    def __init__(
        self, spec: DataSpec, roster: Sequence[str] = (), step: int = 0, batches: Sequence[int] | None = None
    ) -> None:
        _check(spec)
        self._spec = spec
        self._pool = _pool_of(spec)
        self._members = {worker: _Holder(batch) for worker, batch in _by_worker(roster, batches, spec).items()}
        self._step = step
        self._covered = step
        self._epoch = 0  # of the newest round
        self._closed = False  # the newest round was final
        self._deal = Deal()
        self._ended = 0  # epochs before this one are trained
        self._late = -1  # the newest epoch whose samples came back after scripts had been given its final round
        self._totals: tuple[Totals, ...] | None = None  # as last worked out, while that holds
        self._trained_at: dict[int, int] | None = {}  # see `_last_steps`; None: to be worked out
        self._outdated_until = 0
        self._spared: frozenset[str] = frozenset()  # from `enter` to the next `grant`: they have no samples
        self._spared_until = step  # up to this step
        self._history: deque[object] = deque(maxlen=HISTORY)

    # ------------------------------------------------------------------------------------------------ what is so

    @property
    def spec(self) -> DataSpec:
        return self._spec

    @property
    def roster(self) -> tuple[str, ...]:
        return tuple(self._members)

    @property
    def step(self) -> int:
        return self._step

    @property
    def covered_step(self) -> int:
        """Return the last step in which every member has a share, maybe an empty one (once caught up)."""
        return self._covered

    @property
    def batches(self) -> tuple[int, ...]:
        """Return the samples of a full step, by rank, in what is leased from now on."""
        return tuple(_batches(self._members.values()))

    @property
    def batch(self) -> int:
        """Return the samples of a full step, of all members together, in what is leased from now on."""
        return sum(_batches(self._members.values()))

    @property
    def outdated_until(self) -> int:
        """Return the last step with outdated leases, or 0 if nothing can be done about them.

        A lease is outdated if its batch is not the member's present one, if it has too few samples beside the others',
        or if samples of an earlier epoch wait until it is trained.
        """
        return self._outdated_until

    @property
    def wanted_step(self) -> int:
        """Return the last step leased for the epochs wanted by now; later steps are covered on speculation."""
        leases = next((member.leases for member in self._members.values() if member.leases), ())
        wanted = (lease.until_step for lease in leases if lease.epoch < self._spec.epochs)
        return max(wanted, default=self._step) if self._spec.open_ended else self._covered

    @property
    def epoch(self) -> int:
        """Return the first epoch that has not ended; `spec.epochs` when all have."""
        return self._ended

    def trained_by(self, step: int) -> int:
        """Return the samples of all epochs that are trained once `step`, no earlier than the newest one, is stable."""
        trained = self._pool.handed_out
        for lease in self._all_leases():
            trained -= max(0, len(lease) - max(0, step - lease.after_step) * lease.batch)
        return trained

    @property
    def wanted(self) -> int:
        """Return the samples of all wanted epochs; of a stream, those that are known to be there."""
        if isinstance(self._pool, StreamParts):
            return self._pool.handed_out + self._pool.count(self._spec.epochs - 1)
        return self._spec.total * self._spec.epochs

    @property
    def exhausted(self) -> bool:
        return self._ended == self._spec.epochs

    @property
    def fully_leased(self) -> bool:
        """Tell whether no sample of the wanted epochs is unassigned; some may yet be untrained, and come back."""
        return self._pool.first_epoch >= self._spec.epochs

    @property
    def holds_back(self) -> bool:
        """Tell whether the rest must wait: until all before it is trained, as it may be a script's short last batch;
        or until a worker has found more of a stream.
        """
        return bool(self._spec.by_sample or self._spec.shards) and not self._closed and not self.fully_leased

    @property
    def reading(self) -> tuple[str, ...]:
        """Return the members that have yet to find samples of a stream before more can be leased."""
        pool = self._pool
        if not isinstance(pool, StreamParts) or pool.virtual:
            return ()
        limit = self._limit(self._next_epoch())
        reading = (worker for worker in self._readers() if pool.is_awaited(worker, limit))
        return tuple(worker for worker in reading if pool.available(worker, limit) < self._members[worker].batch)

    @property
    def awaited_lanes(self) -> tuple[int, ...]:
        """Return the virtual workers of whose shards more must be found before the next step of a stream is leased."""
        pool = self._pool
        if not isinstance(pool, StreamParts) or not pool.virtual or not self.batch:
            return ()
        return pool.awaited_lanes(self.batch, self._limit(self._next_epoch()))

    @property
    def stranded(self) -> bool:
        """Tell whether samples came back after the last batch of scripts that cut batches: none will ask for these."""
        unseen = all(lease.after_step >= self._step for lease in self._all_leases())
        return self._spec.by_sample and unseen and (self.fully_leased or self._late >= self._ended)

    def spares(self, workers: Iterable[str]) -> int:
        """Return in how many of the next steps each of `workers` has a lease, but no samples."""
        return min((self._empty_until(worker) - self._step for worker in workers), default=0)

    def _empty_until(self, worker: str) -> int:
        leases = self.leases(worker)
        first = next((lease.after_step for lease in leases if len(lease)), self._covered)
        return max(first, self._step) if leases else self._step

    def leases(self, worker: str, after: int = 0) -> tuple[Lease, ...]:
        """Return the leases that `worker` has not fully trained, with numbers above `after`; nothing for a stranger."""
        member = self._members.get(worker)
        return tuple(lease for lease in member.leases if lease.number > after) if member else ()

    def totals(self) -> tuple[Totals, ...]:
        """Samples of all members together in the steps step+1 .. covered_step.

        Within a generation, that is from one `enter` with the grant that follows it to the next, a step's total never
        changes once it is there: later rounds only add steps, and `rebatch` changes only those that no worker
        has seen samples of. So workers may divide by it without asking again.
        """
        if self._totals is None:  # asked for by each worker in turn
            self._totals = sums(self._all_leases(), self._step, self._covered)
        return self._totals

    def counts(self) -> DataCounts:
        """Count the samples of the epoch in progress; once all are trained, of the last one.

        Of a stream, count those of all epochs that are known to be there.
        """
        epoch, total = min(self._ended, self._spec.epochs - 1), self._spec.total
        if isinstance(self._pool, StreamParts):
            return self._counts_of_stream(self._pool, epoch)
        unassigned = self._pool.count_in(epoch)
        left = (piece for lease in self._all_leases() for piece in lease.left(self._step))
        leased = sum(len(piece) for piece in left if piece.epoch == epoch)
        ahead = self._covered - self._step
        return DataCounts(epoch, total, total - unassigned - leased, leased, unassigned, ahead, *self._amiss())

    def _counts_of_stream(self, pool: StreamParts, epoch: int) -> DataCounts:
        leased = sum(len(piece) for lease in self._all_leases() for piece in lease.left(self._step))
        unassigned = pool.count(self._spec.epochs - 1)
        return DataCounts(
            epoch,
            pool.handed_out + unassigned,
            pool.handed_out - leased,
            leased,
            unassigned,
            self._covered - self._step,
            *self._amiss(),
            stream=StreamCounts(*pool.shards_in(epoch)),
        )

    # ---------------------------------------------------------------------------------------------- what happens

    def enter(
        self, roster: Sequence[str], step: int, batches: Sequence[int] | None = None, *, spare: int = 0
    ) -> tuple[int, ...]:
        """A new generation takes over after the committed step `step`. Returns the epochs that ended with it.

        What those who are gone hold of later steps is unassigned again. Newcomers have nothing until the next `grant`,
        which must follow before any step of theirs is committed. `batches`: of each in `roster`, from now on. `spare`:
        what that grant gives newcomers begins so many steps later.
        """
        self._history.append(("enter", len(roster), step))
        sizes = _by_worker(roster, batches, self._spec)
        members = {worker: self._members.get(worker) or _Holder(0) for worker in sizes}
        changes = [*sizes.items()] != [(worker, member.batch) for worker, member in self._members.items()]
        self._advance(step)
        if changes:
            self._deal = Deal()
        for worker, member in members.items():
            member.batch = sizes[worker]
        self._withdraw()
        gone = [self._members[worker] for worker in self._members if worker not in members]
        self._pool.give_back(piece for member in gone for lease in member.leases for piece in lease.left(step))
        if not members.keys() & self._members.keys():
            self._closed = False  # no member is left whose pass the newest round was final for
        elif self._closed and gone:
            self._late = self._epoch
        self._spared = frozenset(members.keys() - self._members.keys()) if spare else frozenset()
        self._spared_until = step + spare
        self._members = members
        self._count_anew()
        return self._end_epochs()

    def hand_over(self, roster: Sequence[str]) -> None:
        """Replace all members at once, before they train: each newcomer takes the leases of its rank.

        If the number of workers differs, all leases are unassigned again, and `enter` follows.
        """
        self._history.append(("hand_over", len(roster)))
        if len(roster) == len(self._members):
            if isinstance(self._pool, StreamParts):
                self._pool.rename(dict(zip(self._members, roster, strict=True)))
            self._members = dict(zip(_distinct(roster), self._members.values(), strict=True))
        else:
            self.rebatch(self._step)

    def commit(self, step: int) -> tuple[int, ...]:
        """Note that all members have applied `step` (I5), and return the epochs that ended with it."""
        self._history.append(("commit", step))
        if step > self._step and any(self._uncovered()):
            raise self._refused(f"commit({step}) before newcomers were granted leases (I7)")
        self._advance(step)
        if isinstance(self._pool, StreamParts):
            self._pool.settle(self._untrained())
        return self._end_epochs()

    def learn(self, told: Iterable[ShardPart]) -> bool:
        """Take in what is found out about a stream; tell whether workers must hear of it: others read parts now, or
        all is leased. An epoch may end with it, whose last shards have no more than is trained.
        """
        if not isinstance(self._pool, StreamParts):
            return False
        ended = self._pool.learn(told)
        self._pool.settle(self._untrained())
        self._outdated_until = self._last_outdated()
        moved = self._pool.assign(self._readers())
        if ended:
            self._end_epochs()
        return ended or moved

    @property
    def has_nothing(self) -> bool:
        """Tell whether this is a stream of which no shard has an item."""
        return isinstance(self._pool, StreamParts) and self._pool.has_nothing

    def has_begun(self, part: int) -> bool:
        """Tell whether this part of a stream was given to a worker to read, now or before."""
        return not isinstance(self._pool, StreamParts) or part < self._pool.begun

    def facts(self) -> tuple[ShardPart, ...]:
        """Return what is known of the parts of a stream, for another ledger to learn."""
        return self._pool.parts if isinstance(self._pool, StreamParts) else ()

    def grant(self, until_step: int) -> dict[str, tuple[Lease, ...]]:
        """Let newcomers catch up; then extend all members' coverage towards `until_step` as far as samples allow."""
        self._history.append(("grant", until_step))
        before = {worker: member.number for worker, member in self._members.items()}
        if isinstance(self._pool, StreamParts):
            self._pool.assign(self._readers())
        self._catch_up()
        while self._covered < until_step and self._grant_round(until_step - self._covered):
            pass
        self._spared = frozenset()
        given = {worker: self.leases(worker, after=number) for worker, number in before.items()}
        return {worker: leases for worker, leases in given.items() if leases}

    def idle(self) -> None:
        """Add a step in which no member has samples, for members that wait where none can be leased."""
        self._history.append(("idle",))
        if self._closed or any(self._uncovered()):
            raise self._refused("idle() after the final round, or before newcomers were granted leases (I7)")
        form = Lease(0, self._covered, 1, 0, (), self._epoch, False)
        self._give(tuple(self._members.values()), [0] * len(self._members), form)
        self._covered += 1

    def resize(self, batches: Sequence[int]) -> None:
        """Set the batches, by rank, of leases granted from now on."""
        self._history.append(("resize", batches))
        if list(batches) != _batches(self._members.values()):
            self._deal = Deal()
        for member, batch in zip(self._members.values(), batches, strict=True):
            member.batch = batch
        self._outdated_until = self._last_outdated()

    def rebatch(self, step: int) -> None:
        """Unassign the leases of steps after `step`, of which no worker was handed samples.

        The next `grant` leases these samples in the present batches.
        """
        self._history.append(("rebatch", step))
        if not self._step <= step <= self._covered:
            raise self._refused(f"rebatch({step}) is outside {self._step}..{self._covered}")
        if any(self._uncovered()):
            raise self._refused(f"rebatch({step}) before newcomers were granted leases (I7)")
        for member in self._members.values():
            kept = tuple(lease.up_to(step) for lease in member.leases if lease.after_step < step)
            self._pool.give_back(piece for lease in member.leases for piece in lease.between(step, lease.until_step))
            member.number -= len(member.leases) - len(kept)
            member.leases = kept if step > self._step else ()  # then the first one is trained, as far as it goes now
        newest = next((member.leases[-1] for member in self._members.values() if member.leases), None)
        if newest is None:
            self._epoch, self._closed = min(self._epoch, self._pool.first_epoch), False
        else:
            self._epoch, self._closed = newest.epoch, newest.final
        self._covered, self._totals, self._trained_at = step, None, None
        self._outdated_until, self._deal = 0, Deal()

    def extend(self, epochs: int) -> None:
        """Raise the number of wanted epochs to `epochs`; a smaller number changes nothing."""
        self._history.append(("extend", epochs))
        self._want(epochs)
        if self._spec.shards:
            self._end_epochs()  # all shards may be known to have nothing in it

    # ------------------------------------------------------------------------------------------------- snapshots

    def snapshot(self) -> LedgerSnapshot:
        """Return the whole state as a value that `restore` turns into an equal ledger."""
        members = (MemberSnapshot(name, one.batch, one.number, one.leases) for name, one in self._members.items())
        return LedgerSnapshot(
            spec=self._spec,
            step=self._step,
            epoch=self._epoch,
            closed=self._closed,
            ended=self._ended,
            frontier=0 if isinstance(self._pool, StreamParts) else self._pool.frontier,
            returned=() if isinstance(self._pool, StreamParts) else self._pool.returned,
            members=tuple(members),
            late=self._late,
            deal=self._deal,
            stream=self._pool.snapshot() if isinstance(self._pool, StreamParts) else None,
        )

    @classmethod
    def restore(cls, snapshot: LedgerSnapshot) -> Ledger:
        ledger = cls(snapshot.spec, step=snapshot.step)
        ledger._pool = _pool_of(snapshot.spec, snapshot)
        ledger._members = {one.worker: _Holder(one.batch, one.number, one.leases) for one in snapshot.members}
        ledger._epoch, ledger._closed, ledger._ended = snapshot.epoch, snapshot.closed, snapshot.ended
        ledger._late, ledger._deal = snapshot.late, snapshot.deal
        ledger._count_anew()
        return ledger

    def validate(self) -> int:
        """Raise InvalidTransition with the story when an invariant is broken.

        Else return how many samples of the epochs wanted by now are not trained. Costs as much as there are leases.
        """
        places = sorted(self._places())
        for (_, stop), (start, _) in pairwise(places):
            if stop > start:
                raise self._refused("I6: a sample is leased twice, or both leased and unassigned")
        if places and places[0][0] < self._ended * self._spec.total:  # of a stream, too: its places have gaps beyond
            raise self._refused(f"I6: epoch {self._ended - 1} ended with samples untrained")
        for worker, member in self._members.items():
            self._validate_member(worker, member)
        end = self._spec.total * self._spec.epochs
        return sum(max(0, min(stop, end) - start) for start, stop in places)

    # ------------------------------------------------------------------------------------------------ the inside

    def _advance(self, step: int) -> None:
        if not self._step <= step <= self._covered:
            raise self._refused(f"step {step} is outside {self._step}..{self._covered} (I7)")
        if self._spec.open_ended and step > self._step:
            self._want(self._epoch_at(step) + 1)
        self._step, self._totals = step, None
        for member in self._members.values():
            if member.leases and member.leases[0].until_step <= step:
                member.leases = tuple(lease for lease in member.leases if lease.until_step > step)

    def _want(self, epochs: int) -> None:
        if epochs > self._spec.epochs:
            self._spec = msgspec.structs.replace(self._spec, epochs=epochs)
            self._pool.epochs = _leasable(self._spec)

    def _epoch_at(self, step: int) -> int:
        """Return the epoch that `step` belongs to, by the leases not yet fully trained; -1 when none covers it."""
        leases = next((member.leases for member in self._members.values() if member.leases), ())
        return next((lease.epoch for lease in leases if lease.after_step < step <= lease.until_step), -1)

    def _withdraw(self) -> None:
        """Take back what is leased of epochs that no script can have begun: none begins one before all of the one
        before is trained. The epoch of the next step may have begun already, though no worker has said so yet.
        """
        begun = max(self._spec.epochs, self._epoch_at(self._step + 1) + 1)
        if self._epoch < begun:
            return
        self._deal = Deal()
        for member in self._members.values():
            kept = tuple(lease for lease in member.leases if lease.epoch < begun)
            taken = member.leases[len(kept) :]
            self._pool.give_back(piece for lease in taken for piece in lease.ranges)
            member.leases, member.number = kept, member.number - len(taken)
            if kept:
                self._epoch, self._closed = kept[-1].epoch, kept[-1].final

    def _count_anew(self) -> None:
        self._covered = max((lease.until_step for lease in self._all_leases()), default=self._step)
        self._totals = self._trained_at = None
        self._outdated_until = self._last_outdated()

    def _last_outdated(self) -> int:
        return max(chain(self._outdated(), self._starved(), self._overtaking()), default=0)

    def _outdated(self) -> Iterator[int]:
        """Yield the last steps of leases whose batch is not the member's present one."""
        for member in self._members.values():
            yield from (lease.until_step for lease in member.leases if lease.batch != member.batch)

    def _starved(self) -> Iterator[int]:
        """Yield the last steps of leases that lack samples: of a whole round only the last step may be short."""
        able = self._able()
        for worker, member in self._members.items():
            for lease in member.leases:
                if len(lease) < (lease.steps - 1) * lease.batch and (able is None or worker in able):
                    yield lease.until_step

    def _able(self) -> frozenset[str] | None:
        """Return the members that have whole batches of a stream at hand, if the samples are a stream's."""
        pool, until = self._pool, self._spec.epochs - 1
        if not isinstance(pool, StreamParts):
            return None
        return frozenset(w for w, one in self._members.items() if one.batch and pool.available(w, until) >= one.batch)

    def _overtaking(self) -> Iterator[int]:
        """Yield the ends of leases that overtake older samples: a lease of a later epoch is trained before samples of
        an earlier one, which a member that is gone gave back when later epochs were leased already.
        """
        if not self._spec.whole_epochs or self._spec.by_sample:  # such a script takes what comes as one stream
            return
        leases = [*self._all_leases()]
        late = {(lease.after_step, lease.ranges[0].epoch) for lease in leases if _brings_older(lease)}
        if isinstance(self._pool, StreamParts) or self._pool.returned:
            late.add((self._covered, self._pool.first_epoch))
        for after_step, epoch in late:
            yield from (one.until_step for one in leases if one.epoch > epoch and one.after_step < after_step)

    def _last_steps(self) -> dict[int, int]:
        """Map each epoch to the step that trains its last leased samples. Many a ledger is restored only to be read."""
        if self._trained_at is None:
            self._trained_at = {}
            for lease in self._all_leases():
                self._note(lease, self._trained_at)
        return self._trained_at

    def _note(self, lease: Lease, last_steps: dict[int, int]) -> None:
        done = 0
        for piece in lease.ranges:
            done += len(piece)
            last_step = lease.after_step - (-done // lease.batch)
            if last_step > self._step:
                last_steps[piece.epoch] = max(last_step, last_steps.get(piece.epoch, 0))

    def _end_epochs(self) -> tuple[int, ...]:
        self._trained_at = {epoch: step for epoch, step in self._last_steps().items() if step > self._step}
        first_open = min([self._spec.epochs, self._pool.first_epoch, *self._trained_at])
        ended = tuple(range(self._ended, first_open))
        self._ended = first_open
        return ended

    def _uncovered(self) -> Iterator[str]:
        if self._covered > self._step:
            yield from (worker for worker, member in self._members.items() if not member.leases)

    def _catch_up(self) -> None:
        """Lease to newcomers beside each lease that survivors have not yet trained."""
        uncovered = [*self._uncovered()]
        newcomers = [self._members[worker] for worker in uncovered]
        if not newcomers:
            return
        example = next(member for member in self._members.values() if member.leases)
        outdated = set(self._outdated())
        for beside in example.leases:
            after_step = max(beside.after_step, self._step)
            form = Lease(0, after_step, beside.until_step - after_step, 0, (), beside.epoch, beside.final)
            if beside.until_step in outdated:
                self._give(newcomers, [0] * len(newcomers), form, batch=0)
                continue
            if self._spared and after_step < self._spared_until:
                form = self._give_none(newcomers, form)
            if not form.steps:
                continue
            if isinstance(self._pool, StreamParts):
                self._give_of_stream(self._pool, uncovered, {}, form)
                continue
            counts = whole_batches(self._pool.count(self._limit(form.epoch)), form.steps, _batches(newcomers))
            self._give(newcomers, counts, form)
        self._outdated_until = self._last_outdated()

    def _give_none(self, members: Sequence[_Holder], form: Lease) -> Lease:
        """Lease the steps of `form` in which newcomers are spared, without samples; return the rest of the form."""
        none = min(form.steps, self._spared_until - form.after_step)
        left = form.steps - none
        empty = msgspec.structs.replace(form, steps=none, final=form.final and not left)
        self._give(members, [0] * len(members), empty)
        return msgspec.structs.replace(form, after_step=form.after_step + none, steps=left)

    def _grant_round(self, steps: int) -> bool:
        if isinstance(self._pool, StreamParts):
            return self._grant_found(self._pool, steps)
        members, epoch = tuple(self._members.values()), self._next_epoch()
        available = self._pool.count(self._limit(epoch))
        if not members or not available or epoch >= self._pool.epochs:
            return False
        deal = self._deal if self._deal.left > 0 else self._next_deal(available, epoch)
        if not deal.left:
            return False
        batches = _batches(members)
        if self._spared and self._covered < self._spared_until:
            others = [0 if worker in self._spared else one.batch for worker, one in self._members.items()]
            deal, batches = (Deal(self._spared_until - self._covered), others) if any(others) else (deal, batches)
        until, dealt = evenly(available, deal.left, batches)
        steps = min(steps, until)
        counts = [min(count, steps * batch) for count, batch in zip(dealt, batches, strict=True)]
        self._closed = sum(counts) == available
        self._deal = Deal() if self._closed else Deal(until - steps, deal.steps)
        self._epoch = epoch
        self._give(members, counts, Lease(0, self._covered, steps, 0, (), epoch, self._closed), dealt=dealt)
        self._covered += steps
        return True

    def _grant_found(self, pool: StreamParts, steps: int) -> bool:
        """Lease the next steps of a stream, as many as each member that may find more has whole batches for."""
        epoch = self._next_epoch()
        limit = self._limit(epoch)
        if not self._members or epoch >= pool.epochs:
            return False
        if pool.virtual:
            return self._grant_by_lane(pool, steps, epoch)
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
        self._give_of_stream(pool, self._members, counts, Lease(0, self._covered, steps, 0, (), epoch, False))
        self._covered += steps
        if pool.first_epoch > limit:
            self._close()
        return True

    def _grant_by_lane(self, pool: StreamParts, steps: int, epoch: int) -> bool:
        """Lease the next steps of a stream to virtual workers, as many as are known; one that is short is the last."""
        [member] = self._members.values()
        most, limit = max(1, LONGEST_ROUND * 8 // max(8, pool.virtual)), self._limit(epoch)
        given, ranges = pool.take_by_lane(member.batch, min(steps, most), limit)
        if not given:
            return False
        member.number += 1
        lease = Lease(member.number, self._covered, given, member.batch, ranges, epoch, by_shard=True)
        self._epoch, self._closed, self._totals = epoch, False, None
        self._note(lease, self._last_steps())
        member.leases += (lease,)
        self._covered += given
        if pool.first_epoch > limit:
            self._close()
        return True

    def _give_of_stream(
        self, pool: StreamParts, workers: Iterable[str], counts: Mapping[str, int], form: Lease
    ) -> None:
        """Lease to each worker its count of items of the shards that it holds; none where that is not said."""
        self._totals = None
        last_steps, limit = self._last_steps(), self._limit(form.epoch)
        for worker in workers:
            member = self._members[worker]
            member.number += 1
            ranges = pool.take(worker, counts.get(worker, 0), limit, member.batch)
            lease = msgspec.structs.replace(form, number=member.number, batch=member.batch, ranges=ranges)
            member.leases += (lease,)
            self._note(lease, last_steps)

    def _close(self) -> None:
        """Note that the newest round has taken the last of its epoch."""
        self._closed = True
        for member in self._members.values():
            member.leases = (*member.leases[:-1], msgspec.structs.replace(member.leases[-1], final=True))

    def _next_epoch(self) -> int:
        """Return the epoch of the next round: `spec.epochs` or more when it must wait for `extend`."""
        first = self._pool.first_epoch
        if not self._spec.whole_epochs or first > self._epoch or not self._closed:
            return max(first, self._epoch)
        # Samples came back after their epoch's final round. Workers are past it, so the next epoch takes them along.
        if self._spec.by_sample or self._epoch + 1 < self._spec.epochs:
            return self._epoch + 1
        return self._epoch

    def _limit(self, epoch: int) -> int:
        """Return the last epoch that a round of `epoch` takes samples from."""
        return epoch if self._spec.whole_epochs else self._spec.epochs - 1

    def _next_deal(self, available: int, epoch: int) -> Deal:
        """Return the next deal; it has no steps if the rest must wait until all before it is trained."""
        a_step = sum(_batches(self._members.values()))
        steps = twice = min(2 * self._deal.steps, LONGEST_DEAL) if self._deal.steps > 0 else FIRST_DEAL
        if not self._spec.whole_epochs:
            # Members hold runs of the stream one after the other: without a bound the last would be epochs ahead.
            steps = min(steps, -(-self._pool.count(epoch) // a_step))
        if self._spec.by_sample:
            last = 1 if self._covered == self._step else 0
            steps = last if available <= a_step else min(steps, (available - 1) // a_step)
        return Deal(steps, twice)

    def _give(
        self,
        members: Sequence[_Holder],
        counts: Sequence[int],
        form: Lease,
        *,
        dealt: Sequence[int] | None = None,
        batch: int | None = None,
    ) -> None:
        """Lease to each member its count of samples: the first of its dealt run, if `dealt` gives the runs' lengths."""
        self._totals = None
        if isinstance(self._pool, StreamParts):  # only what is empty is given so
            hands: list[tuple[Range, ...]] = [() for _ in members]
        else:
            hands = self._pool.deal(counts if dealt is None else dealt, counts)
        last_steps = self._last_steps()
        for member, ranges in zip(members, hands, strict=True):
            member.number += 1
            size = member.batch if batch is None else batch
            lease = msgspec.structs.replace(form, number=member.number, batch=size, ranges=ranges)
            member.leases += (lease,)
            self._note(lease, last_steps)

    def _readers(self) -> Sequence[str]:
        return [worker for worker, member in self._members.items() if member.batch]

    def _all_leases(self) -> Iterator[Lease]:
        return (lease for member in self._members.values() for lease in member.leases)

    def _untrained(self) -> Iterator[Range]:
        return (piece for lease in self._all_leases() for piece in lease.left(self._step))

    def _amiss(self) -> tuple[int, int]:
        """Samples that an ended epoch has left untrained, and samples that are in two places: 0 and 0 (I6)."""
        ended, seen, lost, repeated = self._ended * self._spec.total, 0, 0, 0  # gaps in a stream are later epochs'
        for start, stop in sorted(self._places()):
            lost += max(0, min(stop, ended) - max(start, seen))
            repeated += max(0, min(stop, seen) - start)
            seen = max(seen, stop)
        return lost, repeated

    def _places(self) -> Iterator[tuple[int, int]]:
        if isinstance(self._pool, StreamParts):
            yield from self._pool.places()
        else:
            yield from self._pool.returned
            if self._pool.frontier < self._spec.total * self._spec.epochs:
                yield self._pool.frontier, self._spec.total * self._spec.epochs
        for piece in self._untrained():
            yield piece.epoch * self._spec.total + piece.start, piece.epoch * self._spec.total + piece.stop

    def _validate_member(self, worker: str, member: _Holder) -> None:
        at, number = self._step, member.number - len(member.leases)
        for lease in member.leases:
            number += 1
            if lease.number != number or max(lease.after_step, self._step) != at or lease.until_step <= at:
                raise self._refused(f"I7: {worker}'s leases have a gap at {lease}")
            at = lease.until_step
        if member.leases and at != self._covered:
            raise self._refused(f"I7: {worker} runs dry at step {at}, others at {self._covered}")

    def _refused(self, what: str) -> InvalidTransition:
        state = f"ledger at step {self._step} of {self._covered} covered, {len(self._members)} members"
        return InvalidTransition(state, what, self._history)


def _check(spec: DataSpec) -> None:
    if spec.total < 1:
        raise UsageError(f"source has {spec.total} samples: give elastic_shard_generator() a source with at least one")
    if spec.batch < 1:
        raise UsageError(f"batch is {spec.batch}: ask for at least one sample a step, e.g. shards.batches(64)")
    if spec.epochs < 1:
        raise UsageError(f"epochs is {spec.epochs}: ask elastic_shard_generator() for at least one")


def _leasable(spec: DataSpec) -> int:
    speculative = 1 if spec.shards else SPECULATIVE  # of a stream, each must be read
    return spec.epochs + speculative if spec.open_ended else spec.epochs


def _pool_of(spec: DataSpec, snapshot: LedgerSnapshot | None = None) -> Unassigned | StreamParts:
    if spec.shards:
        return StreamParts(spec, _leasable(spec), None if snapshot is None else snapshot.stream)
    if snapshot is None:
        return Unassigned(spec.total, _leasable(spec))
    return Unassigned(spec.total, _leasable(spec), snapshot.frontier, snapshot.returned)


def _by_worker(roster: Sequence[str], batches: Sequence[int] | None, spec: DataSpec) -> dict[str, int]:
    return dict(zip(_distinct(roster), batches or [spec.batch] * len(roster), strict=True))


def _brings_older(lease: Lease) -> bool:
    """Tell whether `lease` begins with samples of an epoch before its own."""
    return bool(lease.ranges) and lease.ranges[0].epoch < lease.epoch


def _batches(members: Iterable[_Holder]) -> list[int]:
    return [member.batch for member in members]


def _distinct(roster: Sequence[str]) -> Sequence[str]:
    if len(set(roster)) != len(roster):
        raise InvalidTransition("ledger", f"a worker is twice in the roster {list(roster)} (I2)")
    return roster
