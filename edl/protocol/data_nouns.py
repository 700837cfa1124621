"""The nouns of the data: the samples that a script trains on, and which worker holds which of them.

A *position* is a place in an epoch's own order; the sample at a position is given by a permutation of (seed, epoch).
All bookkeeping is in positions, so that shuffling costs it nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

import msgspec


def even_sizes(count: int, parts: int) -> list[int]:
    """Cut `count` things into `parts` runs as even as can be, larger ones first."""
    return [count // parts + (part < count % parts) for part in range(parts)]


def held_by(rank: int, size: int, virtual: int) -> tuple[int, int]:
    """Return the virtual workers first .. last-1 that the worker of this rank computes; none, of more workers than
    virtual ones, for the last ranks.
    """
    bounds = [0, *accumulate(even_sizes(virtual, size))]
    return bounds[rank], bounds[rank + 1]


def lane_of(shard: int, virtual: int) -> int:
    """Return the virtual worker whose a shard of a stream is, in each epoch."""
    return shard % virtual


def bounds_of(samples: int, batch: int, virtual: int) -> Sequence[int]:
    """Return where the part of each virtual worker begins in a step of `samples`, and at the end where the last ends.

    A step of a whole `batch` is cut evenly. A shorter one fills as many of the same parts, so that shapes stay; the
    rest is one part more, or goes with the part before where it is a single sample, which batch norm cannot train on.
    """
    found = [min(bound, samples) for bound in accumulate(even_sizes(batch, virtual), initial=0)]
    if samples < batch:
        last = next(index for index, bound in enumerate(found) if bound == samples)
        if last > 1 and samples - found[last - 1] == 1:
            found[last - 1] = samples
    return found


class DataSpec(msgspec.Struct, frozen=True):
    """A script's arguments of `elastic_shard_generator`. Equal on all workers, or the job fails with the difference."""

    total: int  # samples in one epoch
    epochs: int  # passes that are wanted; may grow while the job runs, never shrink
    batch: int  # samples of a full step: of one worker, or as the job's batch policy decides
    shuffle: bool = False
    seed: int = 0
    whole_epochs: bool = True  # True: a batch never crosses the end of an epoch. False: one stream of samples
    by_sample: bool = False  # the script cuts samples into batches itself: only the last batch of a pass can be short
    source: str = ""  # fingerprint of the files whose records the samples are; empty: samples are numbers
    open_ended: bool = False  # each pass asks for one more epoch when it begins, so none is known to be the last
    shards: int = 0  # of a stream, which has no length: `total` is then `ITEMS` for each of them; 0: no stream
    unit: int = 1  # tokens of an item of a stream
    at_once: int = 0  # shards of a stream that a worker reads at once; 0: all that are its own
    # virtual workers, of which each takes its part of a step by position alone; `batch` is of one of them, as without
    # them of one worker; 0: there are none
    virtual: int = 0

    @property
    def has_end(self) -> bool:
        """Tell whether `epochs` is final; else each pass asks for one more epoch when it begins."""
        return not (self.open_ended or (self.by_sample and self.whole_epochs))

    def differences(self, other: DataSpec) -> tuple[str, ...]:
        """Return the names of fields that contradict another worker's; `epochs` may differ, as it grows."""
        return tuple(
            name for name in self.__struct_fields__ if name != "epochs" and getattr(self, name) != getattr(other, name)
        )


ITEMS = 1 << 32
"""Places of one shard of a stream in an epoch: more than it has items."""


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """A place in a shard of a stream from which it can be read without what comes before."""

    item: int  # the first that is read from here
    state: bytes  # of the source and the operators
    check: int = 0  # checksum of the contents of all items before it: a reader that passes by again finds the same


class ShardPart(msgspec.Struct, frozen=True, array_like=True):
    """A shard of a stream in one epoch, as far as it is known. The part's number is epoch * shards + shard.

    `known`, `ended` and `marks` are facts about the data: they are the same in all readings, so that a
    worker's report of them can be late, come twice, or be followed by a death.
    """

    part: int
    holder: str = ""  # the worker that reads it; in a report: empty
    next: int = 0  # items from here on were never leased
    returned: tuple[tuple[int, int], ...] = ()  # unassigned items before that: from, to
    known: int = 0  # so many items are known to be there
    ended: bool = False  # and these are all
    marks: tuple[Mark, ...] = ()  # in order, the first at or before the first item that is not trained


class StreamSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """The shards of a stream: those that are begun and not yet trained."""

    begun: int  # parts before this one were given to a worker, those that are not among `parts` are trained
    leased: int  # items of all parts that are leased or trained
    parts: tuple[ShardPart, ...]


class Range(msgspec.Struct, frozen=True, array_like=True):
    """Positions start..stop-1 of one epoch."""

    epoch: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


def cut(ranges: Iterable[Range], first: int, last: int) -> tuple[Range, ...]:
    """Cut the positions of `ranges` in order, from index `first` up to, without, index `last`."""
    pieces = []
    for piece in ranges:
        if last <= 0:
            break
        size, start = piece.stop - piece.start, max(first, 0)
        if start < size:
            pieces.append(Range(piece.epoch, piece.start + start, piece.start + min(last, size)))
        first, last = first - size, last - size
    return tuple(pieces)


class Lease(msgspec.Struct, frozen=True, array_like=True):
    """Samples in one worker's hands, for the steps after_step+1 .. after_step+steps.

    The worker takes `batch` samples a step in the order of `ranges`, as long as there are any. So a step may find
    fewer, or none at all: then the worker takes part in the all-reduce with weight zero. All members of a roster hold
    leases of the same steps, of the same `epoch` and equally `final`; `ranges` and `number` are a worker's own. A
    newcomer may have two leases where others have one: it has no samples in its first steps, where it has no state yet.

    With virtual workers all hold the same `ranges`, and `batch` is of all together; `part` says which virtual workers
    are this one's. Of a stream (`by_shard`), a shard's items are those of one virtual worker, by its number alone.
    """

    number: int  # 1, 2, 3, ... per worker without gaps
    after_step: int  # the first batch of this lease is trained in step after_step + 1
    steps: int
    batch: int
    ranges: tuple[Range, ...]
    epoch: int = 0  # the pass its steps belong to; returned samples may be of an earlier one
    final: bool = False  # it took the last unassigned samples: of the epoch (whole_epochs), or of the stream
    part: tuple[int, int, int] | None = None  # virtual workers first .. last-1, of so many
    by_shard: bool = False

    def __len__(self) -> int:
        return sum(len(piece) for piece in self.ranges)

    def __bool__(self) -> bool:
        return True  # a lease without samples is a lease all the same: `if lease` must not skip it

    @property
    def until_step(self) -> int:
        return self.after_step + self.steps

    def share(self, step: int) -> int:
        """Return the number of samples that the worker trains in `step`."""
        if self.part is not None:
            bounds = self.bounds(step)
            return bounds[-1] - bounds[0]
        return self._samples(step)

    def _samples(self, step: int) -> int:
        before = (step - self.after_step - 1) * self.batch
        return max(0, min(self.batch, len(self) - before))

    def whole(self, step: int) -> tuple[Range, ...]:
        """Return the samples of `step`: with virtual workers, those of all of them."""
        return self._between(step - 1, step)

    def bounds(self, step: int) -> Sequence[int]:
        """Return where the part of each of its virtual workers begins in `step`, and where the last one ends."""
        assert self.part is not None  # it is of a job with virtual workers
        first, last, _ = self.part
        return self.bounds_of_all(step)[first : last + 1]

    def bounds_of_all(self, step: int) -> Sequence[int]:
        """Return where the part of each virtual worker begins in `step`, and at the end where the last one ends."""
        assert self.part is not None  # it is of a job with virtual workers
        virtual = self.part[2]
        if not self.by_shard:
            return bounds_of(self._samples(step), self.batch, virtual)
        sizes = [0] * virtual
        for piece in self.whole(step):
            sizes[lane_of(piece.start // ITEMS, virtual)] += len(piece)
        return [*accumulate(sizes, initial=0)]

    def between(self, after_step: int, until_step: int) -> tuple[Range, ...]:
        """Return the samples of the steps after_step+1 .. until_step: by I7 a function of step numbers alone."""
        if self.part is None:
            return self._between(after_step, until_step)
        if self.by_shard:
            first, last, virtual = self.part
            pieces = self._between(after_step, until_step)
            return tuple(one for one in pieces if first <= lane_of(one.start // ITEMS, virtual) < last)
        steps = range(max(after_step, self.after_step) + 1, min(until_step, self.until_step) + 1)
        return tuple(piece for step in steps for piece in self._own(step))

    def _own(self, step: int) -> tuple[Range, ...]:
        bounds = self.bounds(step)
        return cut(self.whole(step), bounds[0], bounds[-1])

    def _between(self, after_step: int, until_step: int) -> tuple[Range, ...]:
        skipped = max(0, after_step - self.after_step) * self.batch
        return cut(self.ranges, skipped, (until_step - self.after_step) * self.batch)

    def up_to(self, step: int) -> Lease:
        """Return the lease without all steps after `step`, which must not be before its first."""
        if self.until_step <= step:
            return self
        kept = self._between(self.after_step, step)
        return msgspec.structs.replace(self, steps=step - self.after_step, ranges=kept, final=False)

    def left(self, step: int) -> tuple[Range, ...]:
        """Return the samples that are not yet trained once `step` is committed."""
        return self.between(step, self.until_step)


class Totals(msgspec.Struct, frozen=True, array_like=True):
    """The samples that all workers train together in each step from the last entry's `until_step` up to this one's.

    `samples` may be 0, if the holders of a step's samples have left: then the step changes nothing.
    """

    until_step: int
    samples: int


class StreamCounts(msgspec.Struct, frozen=True):
    """The shards of a stream in the epoch in progress."""

    done: int  # leased to their end
    in_hand: int
    waiting: int


class DataCounts(msgspec.Struct, frozen=True):
    """The epoch in progress, as `edl status` shows it. unassigned + leased + trained == total (I6)."""

    epoch: int
    total: int
    trained: int
    leased: int
    unassigned: int
    ahead: int  # steps leased beyond the last that all have applied: so many can be trained without a leader
    # Must be 0 (I6), as far as a ledger can see that of itself: a sample in none of its places counts as trained.
    lost: int = 0  # not trained, though their epochs have ended
    repeated: int = 0  # held twice: leased twice, or leased and unassigned
    stream: StreamCounts | None = None  # then `total` is what is known so far, of all epochs


class MemberSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """The leases of one worker of the roster."""

    worker: str
    batch: int
    number: int  # of the newest lease ever given to it
    leases: tuple[Lease, ...]  # not fully trained


class Deal(msgspec.Struct, frozen=True, array_like=True):
    """Samples for some steps, dealt to the members in runs. Rounds lease them; until then they are unassigned."""

    left: int = 0  # of its steps, those after the newest round
    steps: int = 0  # most steps that were dealt for; 0: the next deal is a first one


class LedgerSnapshot(msgspec.Struct, frozen=True):
    """The ledger's state. Its size depends on members, untrained leases and returned pieces, not on samples."""

    spec: DataSpec
    step: int  # the newest stable step that the ledger knew
    epoch: int  # of the newest round
    closed: bool  # the newest round was final
    ended: int  # number of trained epochs
    frontier: int  # places (epoch * total + position) from here on were never leased, or are unassigned again
    returned: tuple[tuple[int, int], ...]  # unassigned places before the frontier: from, to
    members: tuple[MemberSnapshot, ...]  # in order of rank
    late: int = -1  # the newest epoch whose samples came back after its final round was given to scripts
    deal: Deal = Deal()  # the newest deal
    stream: StreamSnapshot | None = None  # with `frontier` and `returned` empty; None: the samples have numbers
