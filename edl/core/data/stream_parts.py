"""The items of a stream that no worker holds: of each shard, what was returned, then all that is known to follow.

A stream has no length. Its items are made of a shard's records one after the other, and are the same in each reading:
so an item has a number in its shard, and an item that is known to be there can be leased as any sample. A worker reads
ahead in the shards that it holds, and tells how many items it has found; nothing else is leased, so no step has fewer
samples than its workers were told.

A *part* is a shard in one epoch. It is held by one worker at a time, which gets the leases of its items. Where a holder
is gone, or a worker has none, another one goes on at the next item: it reads from the newest *mark* at or before that,
a place of the shard that a holder has told. Leases do not move with a part: a former holder trains what it has.

With virtual workers, the items of a step follow from the data alone: virtual worker v has the shards v, v + V, ..., one
after the other in each epoch, and in each step the next items of these. So a step waits until all that it needs of each
is known; where one has no more in this epoch, the step is short. All parts are held in one name then, and read by
the worker that computes their virtual worker.

Owns: who holds which part, what is known of it, and which items are leased next. Does not own: how many of them, and
when (`edl.core.data.sample_ledger`), nor reading (`edl.trainer.data.stream_reader`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from edl.core.data.unassigned import merged
from edl.protocol.data_nouns import ITEMS, DataSpec, Mark, Range, ShardPart, StreamSnapshot, even_sizes, lane_of

READY = 2  # parts of a virtual worker that are read at a time: the one whose items are leased, and the next
MOST_MARKS = 5  # of one part


class StreamParts:
    """Stand in for `edl.core.data.unassigned.Unassigned` where the samples are a stream's."""

    def __init__(self, spec: DataSpec, epochs: int, snapshot: StreamSnapshot | None = None) -> None:
        self.total = spec.total
        self.epochs = epochs
        self._shards = spec.shards
        self._at_once = spec.at_once
        self.virtual = spec.virtual
        before = snapshot or StreamSnapshot(0, 0, ())
        self.begun = before.begun  # parts before this one were given to a worker to read
        self.handed_out = before.leased
        self._parts = {one.part: one for one in before.parts}

    def snapshot(self) -> StreamSnapshot:
        return StreamSnapshot(self.begun, self.handed_out, tuple(self._parts[part] for part in sorted(self._parts)))

    # ------------------------------------------------------------------------------------------------ what is so

    @property
    def parts(self) -> tuple[ShardPart, ...]:
        return tuple(self._parts.values())

    @property
    def first_epoch(self) -> int:
        """Return the first epoch with something left to be leased, known or not; `epochs` when nothing is left."""
        return min((one.part for one in self._parts.values() if _is_left(one)), default=self.begun) // self._shards

    def count(self, until_epoch: int) -> int:
        """Count the known items of all epochs up to and with `until_epoch`."""
        return sum(map(_available, self._until(until_epoch)))

    def count_in(self, epoch: int) -> int:
        return self.count(epoch) - self.count(epoch - 1)

    def available(self, worker: str, until_epoch: int) -> int:
        """Count the known items of the parts that `worker` holds."""
        return sum(_available(one) for one in self._until(until_epoch) if one.holder == worker)

    def is_awaited(self, worker: str, until_epoch: int) -> bool:
        """Tell whether `worker` has still to find items in these epochs."""
        return any(one.holder == worker and not one.ended for one in self._until(until_epoch))

    def shards_in(self, epoch: int) -> tuple[int, int, int]:
        """Count the shards of an epoch that are leased to their end, in a worker's hands, and waiting."""
        first, last = epoch * self._shards, (epoch + 1) * self._shards
        open_ = sum(first <= part < last and _is_left(one) for part, one in self._parts.items())
        begun = max(0, min(self.begun, last) - first)
        return begun - open_, open_, self._shards - begun

    def places(self) -> Iterator[tuple[int, int]]:
        """Yield the places, as epoch * total + position, of known items that are unassigned."""
        for one in self._parts.values():
            for start, stop in (*one.returned, *([(one.next, one.known)] if one.next < one.known else [])):
                yield one.part * ITEMS + start, one.part * ITEMS + stop

    @property
    def has_nothing(self) -> bool:
        """Tell whether all shards of all epochs have ended, and none had an item."""
        return not self.handed_out and self.begun == self.epochs * self._shards and not any(map(_is_left, self.parts))

    # ---------------------------------------------------------------------------------------------- what happens

    def take(self, worker: str, count: int, until_epoch: int, run: int) -> tuple[Range, ...]:
        """Take the next `count` items of the parts of `worker`, in turn `run` of each, those of earlier epochs first.

        The caller has made sure that there are so many.
        """
        held = sorted(
            (one for one in self._until(until_epoch) if one.holder == worker and _available(one)),
            key=lambda one: (one.part // self._shards, one.next, one.part),
        )
        queue, taken = deque(one.part for one in held), list[Range]()
        while count:
            part = queue.popleft()
            pieces = self._take_of(part, min(run, count))
            count -= sum(map(len, pieces))
            taken += pieces
            if _available(self._parts[part]):
                queue.append(part)
        self.handed_out += sum(map(len, taken))
        return _joined(taken)

    def take_by_lane(self, batch: int, steps: int, until_epoch: int) -> tuple[int, tuple[Range, ...]]:
        """Take the items of up to `steps` steps of so many items, as virtual workers have them; return how many steps.

        A step with fewer items is the last.
        """
        sizes, lanes = even_sizes(batch, self.virtual), self._lanes(until_epoch)
        taken, done = list[Range](), 0
        while done < steps:
            counts = [self._found(queue, size) for queue, size in zip(lanes, sizes, strict=True)]
            if None in counts or not any(counts):
                break
            for queue, count in zip(lanes, counts, strict=True):
                taken += self._take_of_lane(queue, count or 0)
            done += 1
            if counts != sizes:
                break
        self.handed_out += sum(map(len, taken))
        return done, _joined(taken)

    def awaited_lanes(self, batch: int, until_epoch: int) -> tuple[int, ...]:
        """Return the virtual workers of which more must be known before the next step can be taken."""
        sizes, lanes = even_sizes(batch, self.virtual), self._lanes(until_epoch)
        found = [self._found(queue, size) for queue, size in zip(lanes, sizes, strict=True)]
        return tuple(lane for lane, count in enumerate(found) if count is None)

    def give_back(self, ranges: Iterable[Range]) -> None:
        """Return items that were taken, and that no worker will train as it is."""
        for piece in ranges:
            part, start = self._place(piece)
            one = self._parts[part]
            back = merged([*one.returned, (start, start + len(piece))])
            first = one.next
            if back and back[-1][1] == first:
                first, back = back[-1][0], back[:-1]
            self._parts[part] = msgspec.structs.replace(one, next=first, returned=back)
            self.handed_out -= len(piece)

    def assign(self, workers: Sequence[str]) -> bool:
        """Give each part without a holder to the worker that reads fewest, and each worker parts to read; tell whether
        that changed anything. What was begun comes first. Where none waits, parts move so that all have as many.
        """
        if not workers:
            return False
        if self.virtual:
            return self._assign_lanes(workers[0])
        before = dict(self._parts)
        load = dict.fromkeys(workers, 0)
        for one in self._parts.values():
            if one.holder in load:
                load[one.holder] += not one.ended
        for one in [one for one in self._by_number() if one.holder not in load]:
            self._hand_on(one, min(workers, key=lambda worker: load[worker]), load)
        last = self.epochs * self._shards
        while self.begun < last and _has_room(load, workers, self._at_once, last - self.begun):
            self._hand_on(ShardPart(self.begun), min(workers, key=lambda worker: load[worker]), load)
            self.begun += 1
        if self.begun == last:
            self._even_out(workers)
        return before != self._parts

    def learn(self, told: Iterable[ShardPart]) -> bool:
        """Take in what a worker, or an earlier ledger, has found out; tell whether a part is known to have ended now.

        Facts about the data only grow. What is said of parts that are trained, or not yet begun, is dropped.
        """
        ended = False
        for fact in told:
            one = self._parts.get(fact.part)
            if one is None or (one.ended and fact.known > one.known):
                continue
            ends = fact.ended and not one.ended
            ended = ended or ends
            # Of an item's two marks the one told last: a filter may have left out all records between them.
            marks = {mark.item: mark for mark in (*one.marks, *fact.marks)}
            self._parts[fact.part] = msgspec.structs.replace(
                one,
                known=max(one.known, fact.known),
                ended=one.ended or fact.ended,
                marks=tuple(marks[item] for item in sorted(marks)),
            )
        return ended

    def settle(self, untrained: Iterable[Range]) -> None:
        """Forget parts that are trained, and marks that no reader needs. `untrained`: what is leased."""
        first: dict[int, int] = {}
        for piece in untrained:
            part, start = self._place(piece)
            first[part] = min(start, first.get(part, start))
        for one in self.parts:
            if one.part not in first and not _is_left(one):
                del self._parts[one.part]
            else:
                low = min(first.get(one.part, one.next), one.next, *(start for start, _ in one.returned))
                if (marks := thinned(one.marks, low)) != one.marks:
                    self._parts[one.part] = msgspec.structs.replace(one, marks=marks)

    def rename(self, names: Mapping[str, str]) -> None:
        self._parts = {one.part: one for one in renamed(self.snapshot(), names).parts}

    # ------------------------------------------------------------------------------------------------ the inside

    def _until(self, epoch: int) -> Iterator[ShardPart]:
        end = (epoch + 1) * self._shards
        return (one for part, one in self._parts.items() if part < end)

    def _by_number(self) -> list[ShardPart]:
        return [self._parts[part] for part in sorted(self._parts)]

    def _place(self, piece: Range) -> tuple[int, int]:
        """Return the part of `piece`, and the number of its first item."""
        shard, item = divmod(piece.start, ITEMS)
        return piece.epoch * self._shards + shard, item

    def _take_of(self, part: int, count: int) -> list[Range]:
        one, taken, left = self._parts[part], list[tuple[int, int]](), list[tuple[int, int]]()
        for start, stop in one.returned:
            until = min(stop, start + count)
            count -= until - start
            taken += [(start, until)] if start < until else []
            left += [(until, stop)] if until < stop else []
        fresh = min(count, one.known - one.next)
        taken += [(one.next, one.next + fresh)] if fresh > 0 else []
        self._parts[part] = msgspec.structs.replace(one, next=one.next + max(0, fresh), returned=tuple(left))
        epoch, shard = divmod(part, self._shards)
        return [Range(epoch, shard * ITEMS + start, shard * ITEMS + stop) for start, stop in taken]

    def _lanes(self, until_epoch: int) -> list[deque[int]]:
        """Return the parts in which items are left, or may be, by virtual worker."""
        lanes: list[deque[int]] = [deque() for _ in range(self.virtual)]
        for one in sorted(self._until(until_epoch), key=lambda one: one.part):
            if _is_left(one):
                lanes[self._lane(one.part)].append(one.part)
        return lanes

    def _lane(self, part: int) -> int:
        return lane_of(part % self._shards, self.virtual)

    def _found(self, queue: Iterable[int], wanted: int) -> int | None:
        """Return how many of `wanted` items the next step has of these parts; None: that is not known yet.

        Where a virtual worker has parts that are not begun, one that is begun is still being read (`assign`).
        """
        found = 0
        for part in queue:
            found += _available(self._parts[part])
            if found >= wanted:
                return wanted
            if not self._parts[part].ended:
                return None
        return found

    def _take_of_lane(self, queue: deque[int], count: int) -> list[Range]:
        taken = list[Range]()
        while count:
            pieces = self._take_of(queue[0], min(count, _available(self._parts[queue[0]])))
            count -= sum(map(len, pieces))
            taken += pieces
            if not _is_left(self._parts[queue[0]]):
                queue.popleft()
        return taken

    def _assign_lanes(self, worker: str) -> bool:
        before, last = dict(self._parts), self.epochs * self._shards
        open_ = [0] * self.virtual
        for one in self.parts:
            open_[self._lane(one.part)] += not one.ended
            self._parts[one.part] = msgspec.structs.replace(one, holder=worker)
        while self.begun < last and min(open_) < READY:
            self._parts[self.begun] = ShardPart(self.begun, holder=worker)
            open_[self._lane(self.begun)] += 1
            self.begun += 1
        return before != self._parts

    def _hand_on(self, one: ShardPart, worker: str, load: dict[str, int]) -> None:
        if one.holder in load:
            load[one.holder] -= not one.ended
        self._parts[one.part] = msgspec.structs.replace(one, holder=worker)
        load[worker] += not one.ended

    def _even_out(self, workers: Sequence[str]) -> None:
        """Move parts that are still read to workers with fewer to train: who has read all may have long to train."""
        left = dict.fromkeys(workers, 0)
        for one in self._parts.values():
            if one.holder in left:
                left[one.holder] += _is_left(one)
        while True:
            most, least = max(workers, key=lambda one: left[one]), min(workers, key=lambda one: left[one])
            movable = [one for one in self._by_number() if one.holder == most and not one.ended]
            if left[most] - left[least] < 2 or not movable:
                return
            self._parts[movable[-1].part] = msgspec.structs.replace(movable[-1], holder=least)
            left[most], left[least] = left[most] - 1, left[least] + 1


def renamed(stream: StreamSnapshot, names: Mapping[str, str]) -> StreamSnapshot:
    """Give the holders other names; a part whose holder has no other name has no holder."""
    parts = (msgspec.structs.replace(one, holder=names.get(one.holder, "")) for one in stream.parts)
    return msgspec.structs.replace(stream, parts=tuple(parts))


def thinned(marks: Sequence[Mark], low: int) -> tuple[Mark, ...]:
    """Return the newest mark at or before item `low`, and of those beyond it a few: the ends, and what lies between
    them as evenly as can be.
    """
    base = max((index for index, mark in enumerate(marks) if mark.item <= low), default=0)
    kept = [*marks[base:]]
    while len(kept) > MOST_MARKS:
        gaps = [kept[index + 1].item - kept[index - 1].item for index in range(1, len(kept) - 1)]
        del kept[1 + gaps.index(min(gaps))]
    return tuple(kept)


def _available(one: ShardPart) -> int:
    return max(0, one.known - one.next) + sum(stop - start for start, stop in one.returned)


def _is_left(one: ShardPart) -> bool:
    """Tell whether items of the part are, or may yet be, to be leased."""
    return not one.ended or one.next < one.known or bool(one.returned)


def _has_room(load: Mapping[str, int], workers: Sequence[str], at_once: int, waiting: int) -> bool:
    return waiting > 0 and (not at_once or min(load[worker] for worker in workers) < at_once)


def _joined(pieces: Sequence[Range]) -> tuple[Range, ...]:
    joined: list[Range] = []
    for piece in pieces:
        if joined and (joined[-1].epoch, joined[-1].stop) == (piece.epoch, piece.start):
            joined[-1] = Range(piece.epoch, joined[-1].start, piece.stop)
        else:
            joined.append(piece)
    return tuple(joined)
