"""Account for every sample of a job by the lines its workers wrote: trained once, lost, or repeated (I6).

Owns: the account. Does not own: which steps count (`edl.core.audit.kept_steps`), the lines
(`edl.protocol.audit_lines`) and the files (`edl.trainer.data.audit_files`). Nothing here asks the ledger: an audit that
believed the bookkeeping would only find what that knows of itself.

Samples are lost once their epoch is over; before that they are still to be trained. When it is over, a job that goes on
cannot know for certain: what a worker loses with the last steps of an epoch is trained along with the next one. So an
epoch is over when the pass after the next has begun, or the scripts were told that the data is at its end. What comes
back when members have gone waits until the others have trained what their pipelines had read by then, which may be of
later passes: until so much is trained, and the pass after, no epoch of that time is over.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from edl.core.audit.kept_steps import AuditedLife, WorkerAudit, lives
from edl.core.data.permutation import samples_at
from edl.errors import UsageError
from edl.protocol.audit_lines import BatchGiven, Committed, DataEnded, DataOpened, Sat, ShardEnded
from edl.protocol.data_nouns import ITEMS, DataSpec, Range

# Account for the items of a stream by the lines its workers wrote: those of each shard from its first to its last.
#
# How many items a shard has is known by the workers that came to its end. Before that, none beyond the last that was
# trained is missing.


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


FIRST = 5  # offenders of a kind that are named
NEAR = 1e-6  # weights are rounded on their way through a framework


class Portion(msgspec.Struct, frozen=True):
    step: int  # of that life
    worker: str
    life: int = 1


class Offender(msgspec.Struct, frozen=True):
    """A sample that was lost or repeated."""

    sample: int
    steps: tuple[Portion, ...]  # repeated: those that trained it. Lost: those that were to, and do not count


class StreamAccount(msgspec.Struct, frozen=True):
    shards: int
    ended: int  # of which the end is known
    unit: int  # tokens of an item
    skipped: tuple[int, ...]  # shards that could not be read to their ends
    first_lost: tuple[ItemSpan, ...]
    first_repeated: tuple[ItemSpan, ...]


class EpochAccount(msgspec.Struct, frozen=True):
    """The samples of one epoch, each in exactly one step, or not."""

    epoch: int
    over: bool
    total: int
    trained: int  # at least once
    lost: int  # never, and the epoch is over
    repeated: int  # more than once
    first_lost: tuple[Offender, ...]
    first_repeated: tuple[Offender, ...]
    stream: StreamAccount | None = None


class Weighed(msgspec.Struct, frozen=True):
    """A weight in an update that differs from the worker's share of the step's samples."""

    step: int
    worker: str
    weight: float
    right: float
    life: int = 1


class LifeAccount(msgspec.Struct, frozen=True):
    life: int
    parent: int  # the life that it went on from; 0: it began anew
    parent_step: int  # after that step of it
    base: int | None  # after that step of all lives together; None: no later life has gone on from this one
    steps: int  # that it made
    kept: int  # of them: those up to the step that the next one went on from
    workers: int
    generations: int  # that trained anything

    @property
    def begins_anew(self) -> bool:
        return not self.parent


class Account(msgspec.Struct, frozen=True):
    job: str
    workers: int
    generations: int  # that trained anything
    steps: int  # that count, of all lives
    lives: tuple[LifeAccount, ...]
    void_steps: int  # of lives that a later one went on from an earlier step of
    again: int  # samples of those steps: to be trained again
    epochs: tuple[EpochAccount, ...]
    epochs_wanted: int
    wrong: int  # steps of workers whose samples were not those of their positions
    first_wrong: tuple[Portion, ...]
    updates: int | None  # steps that have changed the model; None: not all steps have a worker that says so
    weightless: int  # steps in which no worker had samples (I13)
    misweighed: int  # shares of workers in updates
    first_misweighed: tuple[Weighed, ...]

    @property
    def clean(self) -> bool:
        samples = any(epoch.lost or epoch.repeated for epoch in self.epochs)
        return not (self.wrong or self.misweighed or samples)


class _Hand(msgspec.Struct, frozen=True):
    """A portion that one worker was given for one step, and whether that step trained it."""

    taken: Portion
    line: BatchGiven
    counts: bool
    void: bool  # it would count, if a later life had not gone on from an earlier step

    def has(self, epoch: int, position: int) -> bool:
        return any(piece.epoch == epoch and piece.start <= position < piece.stop for piece in self.line.ranges)


class _Weighing(msgspec.Struct, frozen=True):
    life: int
    step: int
    samples: dict[str, int]  # of each member
    weights: dict[str, float]  # of those who lived to tell, and could

    @property
    def updated(self) -> bool | None:
        """Return None where no worker reported a weight."""
        return any(self.weights.values()) if self.weights else None

    def misweighed(self) -> Iterator[Weighed]:
        """Yield members whose weight was wrong in an update. If all skipped it, for a loss not finite, none was."""
        total = sum(self.samples.values())
        for worker, weight in self.weights.items() if self.updated else ():
            right = self.samples[worker] / total if total else 0.0
            if abs(weight - right) > NEAR:
                yield Weighed(self.step, worker, weight, right, self.life)


def account(audits: Sequence[WorkerAudit]) -> Account:
    """Raise UsageError for audits that do not belong together, or are not complete."""
    job, found = _job_of(audits), lives(audits)
    counting = [life for life in found if life.counts]
    spec = _spec_of(counting)
    hands_of = {life.number: sorted(_hands(life), key=_place) for life in found}
    hands = [hand for life in counting for hand in hands_of[life.number]]
    by_epoch = _by_epoch(spec, hands)
    wrong = [hand.taken for hand in hands if hand.counts and _check(spec, hand.line.ranges) != hand.line.check]
    over = _epochs_over(counting[-1], hands)
    ends = [line for life in counting for one in life.audits for line in one.lines if isinstance(line, ShardEnded)]
    begun = max(over, max(by_epoch, default=-1) + 1)
    weighings = tuple(one for life in counting for one in _weighings(life, hands_of[life.number]))
    misweighed = [one for weighing in weighings for one in weighing.misweighed()]
    return Account(
        job=job,
        workers=len(audits),
        generations=sum(len(life.spans) for life in found),
        steps=sum(life.kept for life in found),
        lives=tuple(map(_life, found)),
        void_steps=sum(life.steps - life.kept for life in found),
        again=sum(len(piece) for ones in hands_of.values() for hand in ones if hand.void for piece in hand.line.ranges),
        epochs=tuple(_epoch(spec, number, number < over, by_epoch[number], ends) for number in range(begun)),
        epochs_wanted=spec.epochs,
        wrong=len(wrong),
        first_wrong=tuple(wrong[:FIRST]),
        updates=None if any(one.updated is None for one in weighings) else sum(bool(one.updated) for one in weighings),
        weightless=sum(not sum(one.samples.values()) for one in weighings),
        misweighed=len(misweighed),
        first_misweighed=tuple(misweighed[:FIRST]),
    )


def _job_of(audits: Sequence[WorkerAudit]) -> str:
    first, *others = sorted({audit.job for audit in audits}) or [""]
    if others:
        raise UsageError(f"these are audits of the jobs {first} and {others[0]}: give each job a folder of its own")
    return first


def _life(one: AuditedLife) -> LifeAccount:
    begun = one.begun
    return LifeAccount(
        life=begun.life,
        parent=begun.parent,
        parent_step=begun.step,
        base=one.base,
        steps=one.steps,
        kept=one.kept,
        workers=len(one.audits),
        generations=len(one.spans),
    )


def _spec_of(lives: Iterable[AuditedLife]) -> DataSpec:
    """Return the data of the lives that count: a life that began anew may have trained on other data."""
    audits = [audit for life in lives for audit in life.audits]
    specs = [line.spec for audit in audits for line in audit.lines if isinstance(line, DataOpened)]
    if not specs:
        raise UsageError("there is nothing to verify: no worker has asked for data")
    if differences := next(filter(None, (spec.differences(specs[0]) for spec in specs)), None):
        raise UsageError(f"these are audits of more than one run: workers trained on data of another {differences[0]}")
    return max(specs, key=lambda spec: spec.epochs)


def _hands(life: AuditedLife) -> Iterator[_Hand]:
    made = {
        (worker, step)
        for span in life.spans
        for step in range(span.after_step + 1, span.until_step + 1)
        for worker in span.members
    }
    for audit in life.audits:
        newest = {line.step: line for line in audit.lines if isinstance(line, BatchGiven)}
        for step, line in newest.items():
            trained, kept = (audit.worker, step) in made, step <= life.kept
            yield _Hand(Portion(step, audit.worker, life.number), line, trained and kept, trained and not kept)


def _weighings(life: AuditedLife, hands: Iterable[_Hand]) -> Iterator[_Weighing]:
    samples = {(hand.taken.worker, hand.taken.step): sum(map(len, hand.line.ranges)) for hand in hands if hand.counts}
    weights = {
        (audit.worker, line.generation, line.step): line.weight
        for audit in life.audits
        for line in audit.lines
        if isinstance(line, Committed) and line.weight is not None
    }
    for span in life.spans:
        for step in range(span.after_step + 1, min(span.until_step, life.kept) + 1):
            told = {worker: weights.get((worker, span.generation, step)) for worker in span.members}
            known = {worker: weight for worker, weight in told.items() if weight is not None}
            yield _Weighing(
                life.number, step, {worker: samples.get((worker, step), 0) for worker in span.members}, known
            )


def _by_epoch(spec: DataSpec, hands: Iterable[_Hand]) -> defaultdict[int, list[_Hand]]:
    """Group hands by epoch: a hand has samples of one epoch, or of two at an epoch's end."""
    found: defaultdict[int, list[_Hand]] = defaultdict(list)
    for hand in hands:
        for piece in hand.line.ranges:
            if not (piece.epoch >= 0 and 0 <= piece.start < piece.stop <= spec.total):
                where = f"{piece.start}..{piece.stop - 1} of epoch {piece.epoch}"
                raise UsageError(f"{hand.taken.worker} was given positions {where}, which the data does not have")
        for epoch in {piece.epoch for piece in hand.line.ranges}:
            found[epoch].append(hand)
    return found


def _epochs_over(newest: AuditedLife, hands: Sequence[_Hand]) -> int:
    """Return the number of epochs that are over. Only scripts of the newest life can have been told that they are."""
    lines = (line for audit in newest.audits for line in audit.lines)
    told = (line for line in lines if isinstance(line, DataEnded) and line.step == newest.steps)
    newest_pass = max((hand.line.epoch for hand in hands if hand.counts), default=0)
    begun = min([newest_pass - 1, *_waiting(newest, newest_pass)])
    return max(begun, 0, *(line.epochs for line in told))


def _waiting(life: AuditedLife, newest_pass: int) -> Iterator[int]:
    """Yield the first epochs whose samples may wait, as they came back at a switch, for what pipelines had read."""
    at, read = _passes_at_switches(life)
    waits: list[tuple[int, int]] = []  # from this epoch on, until this pass has begun
    for generation in sorted(at.keys() & read.keys()):
        first = min([at[generation], *(earlier for earlier, until in waits if at[generation] < until)])
        waits.append((first, read[generation] + 2))
    return (first for first, until in waits if newest_pass < until)


def _passes_at_switches(life: AuditedLife) -> tuple[dict[int, int], dict[int, int]]:
    """Return, by generation, the pass that it began in, and the last pass that a member's pipeline had read of."""
    passes = {line.step: line.epoch for audit in life.audits for line in audit.lines if isinstance(line, BatchGiven)}
    at: dict[int, int] = {}
    read: dict[int, int] = {}
    for audit in life.audits:
        newest: int | None = None
        for line in audit.lines:
            if isinstance(line, BatchGiven):
                newest = line.epoch if newest is None else max(newest, line.epoch)
            elif isinstance(line, Sat) and newest is not None:
                read[line.generation] = max(newest, read.get(line.generation, 0))
                at[line.generation] = passes.get(line.step + 1, passes.get(line.step, newest))
    return at, read


def _epoch(spec: DataSpec, epoch: int, over: bool, hands: Sequence[_Hand], ends: Sequence[ShardEnded]) -> EpochAccount:
    if spec.shards:
        return _epoch_of_stream(spec, epoch, over, hands, ends)
    times = np.zeros(spec.total, np.int32)
    for hand in hands:
        for piece in hand.line.ranges if hand.counts else ():
            if piece.epoch == epoch:
                times[piece.start : piece.stop] += 1
    never, repeated = np.flatnonzero(times == 0), np.flatnonzero(times > 1)
    lost = never if over else never[:0]
    return EpochAccount(
        epoch=epoch,
        over=over or not never.size,
        total=spec.total,
        trained=spec.total - never.size,
        lost=lost.size,
        repeated=repeated.size,
        first_lost=_offenders(spec, epoch, lost, hands),
        first_repeated=_offenders(spec, epoch, repeated, [hand for hand in hands if hand.counts]),
    )


def _epoch_of_stream(
    spec: DataSpec, epoch: int, over: bool, hands: Sequence[_Hand], ends: Sequence[ShardEnded]
) -> EpochAccount:
    trained = (piece for hand in hands if hand.counts for piece in hand.line.ranges)
    found = shards_of(epoch, spec.shards, spec.unit, trained, ends)
    over = over or (found.ended == spec.shards and not found.lost)
    lost = found.lost if over else ()
    counting = [hand for hand in hands if hand.counts]
    return EpochAccount(
        epoch=epoch,
        over=over,
        total=found.total,
        trained=found.trained,
        lost=sum(one.last - one.first + 1 for one in lost),
        repeated=sum(one.last - one.first + 1 for one in found.repeated),
        first_lost=tuple(_of_span(one, epoch, hands) for one in lost[:FIRST]),
        first_repeated=tuple(_of_span(one, epoch, counting) for one in found.repeated[:FIRST]),
        stream=StreamAccount(spec.shards, found.ended, spec.unit, found.skipped, lost[:FIRST], found.repeated[:FIRST]),
    )


def _of_span(one: ItemSpan, epoch: int, hands: Iterable[_Hand]) -> Offender:
    return Offender(one.position, tuple(hand.taken for hand in hands if hand.has(epoch, one.position)))


def _offenders(
    spec: DataSpec, epoch: int, positions: NDArray[np.int64], hands: Sequence[_Hand]
) -> tuple[Offender, ...]:
    ids = _ids(spec, epoch)
    return tuple(
        Offender(int(ids[position]), tuple(hand.taken for hand in hands if hand.has(epoch, position)))
        for position in positions[:FIRST].tolist()
    )


def _check(spec: DataSpec, ranges: Sequence[Range]) -> int:
    check = 0
    for piece in ranges:
        ids = samples_at(spec, piece) if spec.shards else _ids(spec, piece.epoch)[piece.start : piece.stop]
        check = zlib.crc32(ids.astype("<i8", copy=False).data, check)
    return check


@lru_cache(maxsize=4)
def _ids(spec: DataSpec, epoch: int) -> NDArray[np.int64]:
    return samples_at(spec, Range(epoch, 0, spec.total)).astype("<i8", copy=False)


def _place(hand: _Hand) -> tuple[int, str]:
    return hand.taken.step, hand.taken.worker
