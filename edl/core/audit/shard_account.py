"""Account for the items of a stream by the lines its workers wrote: those of each shard from its first to its last.

Owns: which items of which shards are lost or repeated in an epoch. Does not own: which steps count, nor all else that
an account says (`edl.core.audit.sample_account`).

How many items a shard has is known by the workers that came to its end. Before that, none beyond the last that was
trained is missing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

import msgspec

from edl.errors import UsageError
from edl.protocol.audit_lines import ShardEnded
from edl.protocol.data_nouns import ITEMS, Range

Span = tuple[int, int]  # items from..to-1


class ItemSpan(msgspec.Struct, frozen=True):
    """Items of a shard that are lost or repeated, as tokens where an item has a number of them."""

    shard: int
    first: int
    last: int
    tokens: Span | None = None

    @property
    def position(self) -> int:
        return self.shard * ITEMS + self.first


class ShardsAccount(msgspec.Struct, frozen=True):
    """The items of one epoch of a stream."""

    total: int  # as far as is known
    trained: int  # at least once
    lost: tuple[ItemSpan, ...]
    repeated: tuple[ItemSpan, ...]
    ended: int  # shards of which the end is known
    skipped: tuple[int, ...]  # shards that could not be read to their ends


def shards_of(
    epoch: int, shards: int, unit: int, trained: Iterable[Range], ended: Iterable[ShardEnded]
) -> ShardsAccount:
    """Account for the items of an epoch: `trained` are those of the steps that count. Raises UsageError where workers
    do not agree on the end of a shard.
    """
    ends, skipped = dict[int, int](), set[int]()
    for line in ended:
        if line.epoch != epoch:
            continue
        if ends.setdefault(line.shard, line.items) != line.items:
            raise UsageError(
                f"shard {line.shard} has ended after {ends[line.shard]} items and after {line.items}: it was not the "
                "same in each reading"
            )
        if line.skipped:
            skipped.add(line.shard)
    spans = defaultdict[int, list[Span]](list)
    for piece in trained:
        if piece.epoch == epoch:
            shard, first = divmod(piece.start, ITEMS)
            spans[shard].append((first, first + len(piece)))
    lost, repeated = list[ItemSpan](), list[ItemSpan]()
    total = count = 0
    for shard in range(shards):
        there = sorted(spans[shard])
        end = ends.get(shard, max((stop for _, stop in there), default=0))
        lost += [_named(shard, span, unit) for span in _gaps(there, end)]
        repeated += [_named(shard, span, unit) for span in _overlaps(there)]
        total, count = total + end, count + end - sum(stop - first for first, stop in _gaps(there, end))
    return ShardsAccount(total, count, tuple(lost), tuple(repeated), len(ends), tuple(sorted(skipped)))


def _named(shard: int, span: Span, unit: int) -> ItemSpan:
    first, stop = span
    return ItemSpan(shard, first, stop - 1, (first * unit, stop * unit - 1) if unit > 1 else None)


def _gaps(spans: Iterable[Span], end: int) -> Iterator[Span]:
    at = 0
    for first, stop in spans:
        if first > at:
            yield at, first
        at = max(at, stop)
    if end > at:
        yield at, end


def _overlaps(spans: Iterable[Span]) -> Iterator[Span]:
    at = 0
    for first, stop in spans:
        if first < at:
            yield first, min(at, stop)
        at = max(at, stop)
