"""The items of a stream that this worker trains, read ahead on a thread, and what it tells the leader of its shards.

The leader says which parts this worker reads, and from which item on; the worker tells how many it has found, and
marks from which another one could go on. Only what was told is leased. Items stay here until they are trained, so that
a void mini-batch finds them again; what is wanted and not here, as it came back from a worker that is gone, is read
again from the newest mark before it.

Owns: that thread, the items at hand, and what is told. Does not own: making items (`edl.trainer.data.shard_feeds`),
who reads what (`edl.core.data.stream_parts`), nor which items a step has (`edl.trainer.data.epoch_cursor`).
"""

from __future__ import annotations

import logging
import multiprocessing
import threading
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from edl.core.data.stream_parts import thinned
from edl.errors import DataError, EdlError, UsageError
from edl.protocol.data_nouns import ITEMS, DataSpec, Mark, ShardPart
from edl.sources.streams.elastic_stream import ElasticStream
from edl.sources.streams.stream_operators import Barrier, whole_number
from edl.trainer.data.audit_files import Audit
from edl.trainer.data.job_port import StreamPort
from edl.trainer.data.sample_ids import NO_SAMPLE, Ids
from edl.trainer.data.shard_feeds import BEGIN, ItemChunk, NotAlike, OtherFeeds, OwnFeeds, ReadFailed, ShardFeeds

logger = logging.getLogger("edl")

POLL_S: Final = 0.02
REST_S: Final = 0.25  # the longest that the reader does not look what is to be read
TELL_S: Final = 0.05  # between two reports where the leader has leased all that it was told
CALM_S: Final = 0.5  # between two others
TRIES: Final = 4
FIRST_TRY_S: Final = 0.2  # before the second try; then twice as long each time
AT_HAND_BYTES: Final = 128 << 20
AHEAD_BATCHES: Final = 16  # to begin with; twice as many each time that the leader has leased them all
MOST_AHEAD: Final = 1 << 16  # items
AT_A_TIME: Final = 256  # items of one reading
BARREN_S: Final = 30.0  # of reading without an item, which a filter may cause: then that is told


class Shelf:
    """Items of one part at hand, and how far it is read."""

    def __init__(self, part: int) -> None:
        self.part = part
        self.items: dict[int, tuple[Any, int]] = {}  # by number, with about their bytes
        self.marks: list[Mark] = [BEGIN]
        self.at: int | None = None  # the item that comes next; None: it is not open
        self.ended = False
        self.failures = 0  # in a row, to come beyond the item `failed_at`
        self.failed_at = 0
        self.not_before = 0.0  # after a failure: when it is tried again
        self.asked = False
        self.low = 0  # no item before this one is kept

    def mark_before(self, item: int) -> Mark:
        return self.marks[max(0, bisect_right(self.marks, item, key=lambda mark: mark.item) - 1)]

    def add_marks(self, marks: Iterable[Mark], *, told: bool = False) -> None:
        """Add marks that were just found here; `told`: by the leader, which may know older ones.

        Of two marks of an item the newer counts: a filter may have left out all records between them.
        """
        found = [mark for mark in self.marks if mark.state or not told]
        begin = [mark for mark in self.marks if told and not mark.state]
        known = {mark.item: mark for mark in ([*begin, *marks, *found] if told else [*found, *marks])}
        self.marks = [known[item] for item in sorted(known)]

    def first_missing(self, ranges: Iterable[tuple[int, int]]) -> int | None:
        for start, stop in ranges:
            if start in self.items and stop - 1 in self.items:
                continue
            for item in range(start, stop):
                if item not in self.items:
                    return item
        return None


class StreamReader:
    def __init__(self, stream: ElasticStream, port: StreamPort, patience_s: float, audit: Audit) -> None:
        self._stream, self._port, self._patience_s, self._audit = stream, port, patience_s, audit
        self._make: Callable[[], ShardFeeds] = lambda: OwnFeeds(stream)
        self._feeds: ShardFeeds | None = None
        self._shards = len(stream.names)
        self._changed = threading.Condition()
        self._shelves: dict[int, Shelf] = {}
        self._bytes = 0
        self._batch = 1
        self._ahead = 0
        self._thread: threading.Thread | None = None
        self._closed = False
        self._misses = False  # the script waits for items since the thread has looked last
        self._error: Exception | None = None
        self._is_new = True  # it trains no step yet, and was given no shard
        self._example: Any = None
        self._told: tuple[ShardPart, ...] = ()
        self._told_at = 0.0
        self._leased = defaultdict[int, list[tuple[int, int]]](list)  # items of parts, as last looked at
        self._last_item_at = time.monotonic()
        self._is_barren = False  # the script was told so
        self._next: dict[int, int] = {}  # of each part, up to where it was leased when `_ahead` was last looked at

    # --------------------------------------------------------------------------------------------- the script's side

    def read_by(self, processes: int, context: Any = None) -> None:
        """Say before the first pass that so many processes read."""
        if whole_number("num_workers", processes, least=0):
            if isinstance(context, str) and context not in (known := multiprocessing.get_all_start_methods()):
                raise UsageError(f"multiprocessing_context={context!r}: it must be one of {', '.join(known)}")
            self._make = lambda: OtherFeeds(self._stream, processes, context)

    def begin(self, spec: DataSpec) -> None:
        """Begin to read, for steps of about `spec.batch` items."""
        with self._changed:
            self._batch = max(self._batch, spec.batch)
            self._ahead = max(self._ahead, AHEAD_BATCHES * self._batch * max(1, spec.virtual))
            if self._thread is None and not self._closed:
                self._feeds = self._make()
                self._thread = threading.Thread(target=self._run, daemon=True, name="edl-stream")
                self._thread.start()

    def take(self, ids: Ids) -> list[Any]:
        """Return the items with these numbers. Raises what reading them has raised."""
        if ids.size and ids[0] == NO_SAMPLE:
            return [self.example()] * len(ids)
        wanted = [divmod(place, ITEMS) for place in ids.tolist()]
        until = time.monotonic() + self._patience_s
        with self._changed:
            while not all(part in self._shelves and item in self._shelves[part].items for part, item in wanted):
                self.check()
                if self._closed or time.monotonic() > until:
                    raise DataError(
                        f"the items of a mini-batch were not read within {self._patience_s:g} s, two step time-outs: "
                        "the storage hangs, or it is too slow for such batches (--step-timeout)"
                    )
                self._misses = True
                self._changed.notify_all()
                self._changed.wait(0.1)
            return [self._shelves[part].items[item][0] for part, item in wanted]

    def expect(self, coming: Sequence[Ids]) -> None:
        """Do nothing: the reading thread follows the leases by itself."""

    def example(self) -> Any:
        """Return some item, which counts for nothing. Raises DataError."""
        if self._example is None:
            found = (
                one for shard in range(self._shards) for one in self._stream.items(shard) if type(one) is not Barrier
            )
            self._example = next(found, None)
        if self._example is None:
            raise DataError("ElasticStream: no shard has an item, so there is nothing to train")
        return self._example

    def check(self) -> None:
        """Raise what reading has raised, if it has failed for good."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(5.0)

    # ------------------------------------------------------------------------------------------------- the thread

    def _run(self) -> None:
        feeds = self._feeds
        assert feeds is not None
        leases, known, rests_until = self._port.leases, None, 0.0
        try:
            while not self._closed and not leases.closed:
                # As long as nothing is asked for, only other leases and parts change what is to be done.
                now, newest = time.monotonic(), (leases.leases, leases.parts)
                rests = newest == known and now < rests_until
                with self._changed:
                    if not rests:
                        self._follow(feeds)
                    asked = not rests and self._ask(feeds)
                answers = feeds.answers(POLL_S)
                for part, answer in answers:
                    with self._changed:
                        self._put(part, answer, feeds)
                        self._changed.notify_all()
                if told := self._news():
                    self._port.found(told)
                known = newest
                if asked or answers:
                    rests_until = 0.0
                elif not rests:
                    rests_until = now + REST_S
                if not asked and not answers:
                    with self._changed:
                        self._changed.wait_for(lambda: self._closed or self._misses, POLL_S)
                        self._misses = False
        except Exception as error:  # noqa: BLE001 - the script hears of it
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()
        finally:
            feeds.end()

    def _follow(self, feeds: ShardFeeds) -> None:
        """Follow the newest leases and parts: what is wanted of each part, and what is not any more."""
        held = {one.part: one for one in self._port.leases.parts}
        self._tell_idle(reads=any(one.holder for one in held.values()))
        wanted = self._leased = self._wanted()
        for part in [part for part in self._shelves if part not in held and part not in wanted]:
            shelf = self._shelves.pop(part)
            self._bytes -= sum(size for _, size in shelf.items.values())
            feeds.close(part)
        for part in held.keys() | wanted.keys():
            shelf = self._shelves.setdefault(part, Shelf(part))
            one = held.get(part, ShardPart(part))
            shelf.add_marks(one.marks, told=True)
            low = self._low(one, wanted[part])
            self._drop_before(shelf, low)
            self._aim(shelf, one, wanted[part], feeds)

    def _tell_idle(self, *, reads: bool) -> None:
        """Say once that this worker has nothing to read as it begins to train."""
        trains = bool(self._port.leases.leases)
        if self._is_new and trains and not reads:
            logger.warning(
                "other workers read all %d shards of the stream: this one takes part without samples until one is "
                "free; give at least as many shards as workers",
                self._shards,
            )
        self._is_new = self._is_new and not trains and not reads

    def _wanted(self) -> defaultdict[int, list[tuple[int, int]]]:
        """Map parts to items that are leased to this worker, and not trained yet."""
        committed, wanted = self._port.step() - 1, defaultdict[int, list[tuple[int, int]]](list)
        for lease in self._port.leases.leases:
            for piece in lease.left(committed):
                shard, item = divmod(piece.start, ITEMS)
                wanted[piece.epoch * self._shards + shard].append((item, item + len(piece)))
        return wanted

    @staticmethod
    def _low(one: ShardPart, wanted: Sequence[tuple[int, int]]) -> int:
        first = min((start for start, _ in wanted), default=None)
        if not one.holder:
            return 0 if first is None else first
        back = min((start for start, _ in one.returned), default=one.next)
        return min(one.next, back) if first is None else min(one.next, back, first)

    def _drop_before(self, shelf: Shelf, low: int) -> None:
        for item in range(shelf.low, low) if low - shelf.low < 2 * len(shelf.items) else [*shelf.items]:
            if item < low and (dropped := shelf.items.pop(item, None)) is not None:
                self._bytes -= dropped[1]
        shelf.low = low
        base = bisect_right(shelf.marks, low, key=lambda mark: mark.item) - 1
        if base > 0:
            del shelf.marks[:base]

    def _aim(self, shelf: Shelf, one: ShardPart, wanted: Sequence[tuple[int, int]], feeds: ShardFeeds) -> None:
        """Open the part where reading on would not come to what is missing, or would be longer than need be."""
        if shelf.asked or time.monotonic() < shelf.not_before:
            return
        ranges = [*sorted(wanted), *(one.returned if one.holder else ())]
        missing = shelf.first_missing(ranges)
        if missing is None:
            if not one.holder or (one.ended and one.next >= one.known) or (shelf.ended and shelf.at is None):
                return
            missing = max(one.next, 0 if shelf.at is None else shelf.at)
        mark = shelf.mark_before(missing)
        if shelf.at is None or shelf.at > missing or mark.item > shelf.at:
            known = {known.item: known.check for known in one.marks}
            shelf.at, shelf.ended = mark.item, False
            feeds.open(shelf.part, shelf.part % self._shards, mark, known)

    def _ask(self, feeds: ShardFeeds) -> bool:
        """Ask for items of the parts that need them most; tell whether any was asked for."""
        held = {one.part: one for one in self._port.leases.parts if one.holder}
        wanted, asked = self._leased, False
        for shelf in sorted(self._shelves.values(), key=lambda one: self._rank(one, held.get(one.part), wanted)):
            count = self._short(shelf, held.get(shelf.part), wanted[shelf.part], len(held))
            open_ = shelf.at is not None and not shelf.ended and not shelf.asked
            if count > 0 and open_ and time.monotonic() >= shelf.not_before and feeds.idle(shelf.part):
                feeds.ask(shelf.part, min(count, AT_A_TIME))
                shelf.asked = asked = True
        return asked

    def _rank(self, shelf: Shelf, one: ShardPart | None, wanted: dict[int, list[tuple[int, int]]]) -> tuple[Any, ...]:
        is_missing = shelf.first_missing(sorted(wanted.get(shelf.part, ()))) is not None
        ahead = (shelf.at or 0) - (0 if one is None else one.next)
        return not is_missing, shelf.part // self._shards, ahead, shelf.part

    def _short(self, shelf: Shelf, one: ShardPart | None, wanted: list[tuple[int, int]], parts: int) -> int:
        """Return how many items of the part are to be read now."""
        at = shelf.at or 0
        missing = max((stop for _, stop in wanted), default=0) - at
        if one is None or missing > 0:
            return max(0, missing)
        if one.ended:
            return one.known - at
        ahead = at - max(one.next, 0)
        target = max(2 * self._batch, self._ahead // max(1, parts))
        if self._bytes > AT_HAND_BYTES and ahead >= 2 * self._batch:
            return 0
        return target - ahead

    def _put(self, part: int, answer: ItemChunk | ReadFailed, feeds: ShardFeeds) -> None:
        shelf = self._shelves.get(part)
        if shelf is None:
            return
        shelf.asked = False
        if isinstance(answer, ReadFailed):
            self._fail(shelf, answer, feeds)
            return
        self._tell_barren(answer)
        held = next((one for one in self._port.leases.parts if one.part == part), ShardPart(part))
        wanted = self._leased[part]
        shelf.add_marks(answer.marks)
        if answer.first + len(answer.items) > shelf.failed_at:
            shelf.failures = 0
        if answer.items:
            each = answer.bytes // len(answer.items)
            for number, item in enumerate(answer.items, answer.first):
                is_next = held.holder and (number >= held.next or _within(number, held.returned))
                if number not in shelf.items and (is_next or _within(number, wanted)):
                    shelf.items[number] = item, each
                    self._bytes += each
        shelf.at, shelf.ended = answer.first + len(answer.items), answer.ended
        if (answer.ended and shelf.at < held.known) or (held.ended and shelf.at > held.known):
            raise NotAlike(
                f"shard {self._name(part)} was read again, and ends at item {shelf.at}: {held.known} were found before"
            )
        if answer.ended:
            self._audit.shard_ended(*divmod(part, self._shards), shelf.at)

    def _tell_barren(self, answer: ItemChunk) -> None:
        """Say once that shards are read and give nothing: the job waits for items, maybe forever."""
        now = time.monotonic()
        if answer.items or not answer.marks:
            self._last_item_at = now
        elif now - self._last_item_at > BARREN_S and not self._is_barren:
            self._is_barren = True
            logger.warning(
                "no item was found in %.0f s of reading shards of the stream: see what its filter() keeps", BARREN_S
            )

    def _fail(self, shelf: Shelf, failed: ReadFailed, feeds: ShardFeeds) -> None:
        """Try again, from the newest mark; then give the shard up, or all."""
        name, error = self._name(shelf.part), failed.error
        shelf.failures += 1
        shelf.failed_at = failed.at
        if isinstance(error, EdlError) and not isinstance(error, DataError):
            raise error
        if shelf.failures < TRIES and not isinstance(error, NotAlike):
            wait_s = FIRST_TRY_S * 2 ** (shelf.failures - 1)
            logger.warning("shard %s cannot be read from item %d on, trying again: %s", name, failed.at, _told(error))
            shelf.not_before, shelf.at = time.monotonic() + wait_s, None
            feeds.close(shelf.part)
            return
        told = f"shard {name} cannot be read from item {failed.at} on: {_told(error)}"
        held = next((one for one in self._port.leases.parts if one.part == shelf.part), ShardPart(shelf.part))
        if self._stream.skips and not isinstance(error, NotAlike) and failed.at >= held.known:
            logger.warning("%s; the job goes on without the rest of it, as unreadable='skip' says", told)
            feeds.close(shelf.part)
            shelf.at, shelf.ended = failed.at, True
            self._audit.shard_ended(*divmod(shelf.part, self._shards), failed.at, skipped=True)
            return
        if isinstance(error, NotAlike):
            raise error
        remedy = "mend it and resume the job"
        if not self._stream.skips:
            remedy += ", or go on without the rest of it: ElasticStream(unreadable='skip')"
        else:
            remedy += f": {held.known} items of it were found before, so it cannot be passed over"
        raise DataError(f"{told}; {remedy}") from error

    def _name(self, part: int) -> str:
        return self._stream.names[part % self._shards]

    def _news(self) -> tuple[ShardPart, ...]:
        """Return what the leader is to know of the parts that this worker reads; nothing if it knows, or can wait."""
        now = time.monotonic()
        with self._changed:
            held = [one for one in self._port.leases.parts if one.holder]
            starved = any(one.next >= one.known for one in held if not one.ended)
            if now - self._told_at < (TELL_S if starved else CALM_S):
                return ()
            wanted = self._leased
            told = tuple(self._fact(one, wanted[one.part]) for one in held if self._shelves.get(one.part) is not None)
            if told == self._told or not told:
                return ()
            # The leader has leased all that it was told before: it could use more.
            if self._told and any(one.next >= one.known > self._next.get(one.part, 0) for one in held):
                self._ahead = min(2 * self._ahead, MOST_AHEAD)
            self._next = {one.part: one.next for one in held}
            self._told, self._told_at = told, now
            return told

    def _fact(self, one: ShardPart, wanted: Sequence[tuple[int, int]]) -> ShardPart:
        shelf = self._shelves[one.part]
        at = 0 if shelf.at is None else shelf.at
        marks = [mark for mark in shelf.marks if mark.item <= max(at, one.known)]
        return ShardPart(
            one.part,
            known=max(at, one.known),
            ended=one.ended or shelf.ended,
            marks=thinned(marks, self._low(one, wanted)),
        )


def _within(number: int, ranges: Iterable[tuple[int, int]]) -> bool:
    return any(start <= number < stop for start, stop in ranges)


def _told(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0] or type(error).__name__
