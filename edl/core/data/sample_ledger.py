"""Assign samples to workers and steps: none is lost and none repeated (I6), whatever happens to workers.

Owns: leases, and what follows from them and the committed step: progress, weights, ends of epochs (I7).
Does not own: which samples are unassigned, and how many steps a round has (`edl.core.data.ledgers` where a
source has a length, `edl.core.data.ledgers` where it has none), which sample stands at a position
(`edl.core.data.permutation`), how leases travel, when more are granted.

Samples are granted in *rounds*. A round extends the coverage of all members by the same steps; each gets `batch`
samples in each of them. Only a round that takes the last unassigned samples (it is *final*) ends in a step with fewer,
spread as evenly as the members' batches. So all run dry at the same step, and a committed step says of every lease how
far it is trained; no worker has to report it.

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
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Self

import msgspec

from edl.core.data import lease_holder
from edl.core.data.lease_holder import LeaseHolder, batch_by_worker, batches_of, distinct
from edl.core.data.rounds import sums
from edl.core.data.unassigned import Pool
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
    Totals,
)

SPECULATIVE = 64  # epochs beyond those wanted: each costs every member a lease, however short it is
HISTORY = 32  # events kept for the story of an InvalidTransition


class Ledger(ABC):
    """State machine of the data. Every mutator either does all it says or raises and changes nothing."""

    _pool: Pool

    def __init__(
        self, spec: DataSpec, roster: Sequence[str] = (), step: int = 0, batches: Sequence[int] | None = None
    ) -> None:
        _check(spec)
        self._spec = spec
        self._pool = self._pool_of(spec)
        self._members = {worker: LeaseHolder(batch) for worker, batch in batch_by_worker(roster, batches, spec).items()}
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
        return tuple(batches_of(self._members.values()))

    @property
    def batch(self) -> int:
        """Return the samples of a full step, of all members together, in what is leased from now on."""
        return sum(batches_of(self._members.values()))

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
    @abstractmethod
    def wanted(self) -> int:
        """Return the samples of all wanted epochs, as far as these are known."""

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
        return ()

    @property
    def awaited_lanes(self) -> tuple[int, ...]:
        """Return the virtual workers of whose shards more must be found before the next step of a stream is leased."""
        return ()

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
        """Return the samples of all members together in the steps step+1 .. covered_step.

        Within a generation, that is from one `enter` with the grant that follows it to the next, a step's total never
        changes once it is there: later rounds only add steps, and `rebatch` changes only those that no worker has seen
        samples of. So workers may divide by it without asking again.
        """
        if self._totals is None:  # asked for by each worker in turn
            self._totals = sums(self._all_leases(), self._step, self._covered)
        return self._totals

    @abstractmethod
    def counts(self) -> DataCounts:
        """Count the samples of the epoch in progress; once all are trained, of the last one.

        Of a stream, count those of all epochs that are known to be there.
        """

    # ---------------------------------------------------------------------------------------------- what happens

    def enter(
        self, roster: Sequence[str], step: int, batches: Sequence[int] | None = None, *, spare: int = 0
    ) -> tuple[int, ...]:
        """Let a new generation take over after the committed step `step`; return the epochs that ended with it.

        What those who are gone hold of later steps is unassigned again. Newcomers have nothing until the next `grant`,
        which must follow before any step of theirs is committed. `batches`: of each in `roster`, from now on. `spare`:
        what that grant gives newcomers begins so many steps later.
        """
        self._history.append(("enter", len(roster), step))
        sizes = batch_by_worker(roster, batches, self._spec)
        members = {worker: self._members.get(worker) or LeaseHolder(0) for worker in sizes}
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
            self._members = dict(zip(distinct(roster), self._members.values(), strict=True))
        else:
            self.rebatch(self._step)

    def commit(self, step: int) -> tuple[int, ...]:
        """Note that all members have applied `step` (I5), and return the epochs that ended with it."""
        self._history.append(("commit", step))
        if step > self._step and any(self._uncovered()):
            raise self._refused(f"commit({step}) before newcomers were granted leases (I7)")
        self._advance(step)
        return self._end_epochs()

    def learn(self, told: Iterable[ShardPart]) -> bool:  # noqa: ARG002 - a source with a length has nothing to be found
        """Take in what is found out about a stream; tell whether workers must hear of it: others read parts now, or
        all is leased. An epoch may end with it, whose last shards have no more than is trained.
        """
        return False

    @property
    def has_nothing(self) -> bool:
        """Tell whether this is a stream of which no shard has an item."""
        return False

    def has_begun(self, part: int) -> bool:  # noqa: ARG002 - as above
        """Tell whether this part of a stream was given to a worker to read, now or before."""
        return True

    def facts(self) -> tuple[ShardPart, ...]:
        """Return what is known of the parts of a stream, for another ledger to learn."""
        return ()

    def grant(self, until_step: int) -> dict[str, tuple[Lease, ...]]:
        """Let newcomers catch up; then extend all members' coverage towards `until_step` as far as samples allow."""
        self._history.append(("grant", until_step))
        before = {worker: member.number for worker, member in self._members.items()}
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
        self._give_nothing(self._members.values(), Lease(0, self._covered, 1, 0, (), self._epoch, False))
        self._covered += 1

    def resize(self, batches: Sequence[int]) -> None:
        """Set the batches, by rank, of leases granted from now on."""
        self._history.append(("resize", batches))
        if list(batches) != batches_of(self._members.values()):
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

    # ------------------------------------------------------------------------------------------------- snapshots

    def snapshot(self) -> LedgerSnapshot:
        members = (MemberSnapshot(name, one.batch, one.number, one.leases) for name, one in self._members.items())
        return LedgerSnapshot(
            spec=self._spec,
            step=self._step,
            epoch=self._epoch,
            closed=self._closed,
            ended=self._ended,
            frontier=0,
            returned=(),
            members=tuple(members),
            late=self._late,
            deal=self._deal,
        )

    @classmethod
    def restore(cls, snapshot: LedgerSnapshot) -> Self:
        ledger = cls(snapshot.spec, step=snapshot.step)
        ledger._pool = cls._pool_of(snapshot.spec, snapshot)
        ledger._members = {one.worker: LeaseHolder(one.batch, one.number, one.leases) for one in snapshot.members}
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
            if fault := member.fault(self._step, self._covered):
                raise self._refused(f"I7: {worker}{fault}")
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
            self._pool.epochs = leasable(self._spec)

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
        outdated = lease_holder.of_other_batches(self._members.values())
        overtaking: Iterable[int] = ()
        if self._spec.whole_epochs and not self._spec.by_sample:  # a script that cuts batches takes all as one stream
            oldest = self._pool.first_epoch if self._may_overtake_unassigned() else None
            overtaking = lease_holder.overtaking([*self._all_leases()], self._covered, oldest)
        return max(chain(outdated, lease_holder.starved(self._members, self._able()), overtaking), default=0)

    def _able(self) -> frozenset[str] | None:
        """Return the members that could have whole batches; None: all."""
        return None

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
        outdated = set(lease_holder.of_other_batches(self._members.values()))
        for beside in example.leases:
            after_step = max(beside.after_step, self._step)
            form = Lease(0, after_step, beside.until_step - after_step, 0, (), beside.epoch, beside.final)
            if beside.until_step in outdated:
                self._give_nothing(newcomers, form, batch=0)
                continue
            if self._spared and after_step < self._spared_until:
                form = self._give_none(newcomers, form)
            if form.steps:
                self._give_beside(uncovered, form)
        self._outdated_until = self._last_outdated()

    def _give_none(self, members: Iterable[LeaseHolder], form: Lease) -> Lease:
        """Lease the steps of `form` in which newcomers are spared, without samples; return the rest of the form."""
        none = min(form.steps, self._spared_until - form.after_step)
        left = form.steps - none
        self._give_nothing(members, msgspec.structs.replace(form, steps=none, final=form.final and not left))
        return msgspec.structs.replace(form, after_step=form.after_step + none, steps=left)

    def _give_nothing(self, members: Iterable[LeaseHolder], form: Lease, *, batch: int | None = None) -> None:
        for member in members:
            self._lease(member, form, (), batch=batch)

    def _lease(self, member: LeaseHolder, form: Lease, ranges: tuple[Range, ...], *, batch: int | None = None) -> None:
        """Lease `ranges` to a member in the steps of `form`. `batch`: of each of these steps, if not the member's."""
        size = member.batch if batch is None else batch
        member.number += 1
        lease = msgspec.structs.replace(form, number=member.number, batch=size, ranges=ranges)
        member.leases += (lease,)
        self._totals = None
        self._note(lease, self._last_steps())

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

    # ------------------------------------------------------------------------------------ what depends on the source

    @staticmethod
    @abstractmethod
    def _pool_of(spec: DataSpec, snapshot: LedgerSnapshot | None = None) -> Pool:
        """Make the pool of all samples, or the one that a snapshot was taken of."""

    @abstractmethod
    def _grant_round(self, steps: int) -> bool:
        """Extend all members' coverage by at most `steps`; return False if nothing can be leased now."""

    @abstractmethod
    def _give_beside(self, newcomers: Sequence[str], form: Lease) -> None:
        """Lease to newcomers what there is for the steps of `form`, for which survivors have leases."""

    @abstractmethod
    def _may_overtake_unassigned(self) -> bool:
        """Tell whether unassigned samples may be older than leased ones."""

    @abstractmethod
    def _unassigned_places(self) -> Iterator[tuple[int, int]]:
        """Yield the places, as epoch * total + position, of samples that are unassigned."""

    # -------------------------------------------------------------------------------------------------- all leases

    def _all_leases(self) -> Iterator[Lease]:
        return (lease for member in self._members.values() for lease in member.leases)

    def _untrained(self) -> Iterator[Range]:
        return (piece for lease in self._all_leases() for piece in lease.left(self._step))

    def _amiss(self) -> tuple[int, int]:
        """Count the samples that an ended epoch has left untrained, and those that are in two places: 0 and 0 (I6)."""
        ended, seen, lost, repeated = self._ended * self._spec.total, 0, 0, 0  # gaps in a stream are later epochs'
        for start, stop in sorted(self._places()):
            lost += max(0, min(stop, ended) - max(start, seen))
            repeated += max(0, min(stop, seen) - start)
            seen = max(seen, stop)
        return lost, repeated

    def _places(self) -> Iterator[tuple[int, int]]:
        yield from self._unassigned_places()
        for piece in self._untrained():
            yield piece.epoch * self._spec.total + piece.start, piece.epoch * self._spec.total + piece.stop

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


def leasable(spec: DataSpec) -> int:
    """Return the number of epochs that may be leased: with those of an open end that no script has asked for yet."""
    speculative = 1 if spec.shards else SPECULATIVE  # of a stream, each must be read
    return spec.epochs + speculative if spec.open_ended else spec.epochs
