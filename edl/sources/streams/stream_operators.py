"""Operators of a stream make items of the records of a shard, and can go on from a place.

A source gives records and, now and then between two of them, a *barrier*: its place. A barrier goes down the operators
behind the records before it, and each adds what it needs to go on from there. What comes out at the end is items, and
barriers between them: from one of them all items behind it can be made, without the records before it.

An operator that has something in hand does not add that. It lets the barrier wait until what it has in hand is given
out, and adds how much of the records behind the barrier went into that: of a packed sequence so many tokens, of a batch
so many items. So a place is small, whatever is in hand, and going on reads again what lies behind one barrier. A
barrier that comes while another waits takes its place.

Owns: the operators, each a pure function of what comes in and of its own part of a barrier. Does not own: sources
(`edl.sources.streams.shard_files`), nor which items are wanted (`edl.trainer.data.stream_reader`).
"""

from __future__ import annotations

import logging
import random
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from edl.errors import UsageError

logger = logging.getLogger("edl")

Flow = Iterable[Any]  # records or items, with a Barrier here and there

SAMPLED: Final = 16  # elements of an array that go into a checksum
ENDS: Final = 256  # bytes of text at each end that do
NO_TOKENS: Final = np.empty(0, np.int64)
MASK: Final = -1  # the document of tokens that only fill up the last item of a shard


class Barrier:
    """A place between two records: the parts of the source and of all operators that it has gone through."""

    __slots__ = ("parts",)

    def __init__(self, parts: tuple[Any, ...]) -> None:
        self.parts = parts

    def with_part(self, part: Any) -> Barrier:
        return Barrier((*self.parts, part))


class Operator(Protocol):
    unit: int  # so many of what comes in make one of what goes out, where that is always so; tokens, of `pack`

    def run(self, flow: Flow, part: Any, shard: int, /) -> Iterator[Any]:
        """Go on from a barrier with this `part` of ours; None: from the beginning of the shard."""

    def words(self) -> Sequence[object]:
        """Return what makes the items what they are: workers must say the same."""


class Mapped:
    unit = 1

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def run(self, flow: Flow, _part: Any, _shard: int, /) -> Iterator[Any]:
        function = self._function
        for one in flow:
            if type(one) is Barrier:
                yield one.with_part(None)
                continue
            try:
                made = function(one)
            except Exception as error:
                raise _failed("map", function, error) from error
            yield made

    def words(self) -> Sequence[object]:
        return ("map", name_of(self._function))


class Filtered:
    unit = 1

    def __init__(self, keeps: Callable[[Any], Any]) -> None:
        self._keeps = keeps

    def run(self, flow: Flow, _part: Any, _shard: int, /) -> Iterator[Any]:
        keeps = self._keeps
        for one in flow:
            if type(one) is Barrier:
                yield one.with_part(None)
                continue
            try:
                kept = keeps(one)
            except Exception as error:
                raise _failed("filter", keeps, error) from error
            if kept:
                yield one

    def words(self) -> Sequence[object]:
        return ("filter", name_of(self._keeps))


class Shuffled:
    """Shuffle each block of `block` records, by the seed, the shard and the number of the block.

    A block is whole before any of it is given out. So no record goes into another block where the shard is read again.
    """

    unit = 1

    def __init__(self, block: int, seed: int) -> None:
        self._block, self._seed = block, seed

    def run(self, flow: Flow, part: Any, shard: int, /) -> Iterator[Any]:
        number, skip = (0, 0) if part is None else part
        held, waits = list[Any](), None
        for one in flow:
            if type(one) is Barrier:
                if not skip:
                    waits = one.with_part((number + bool(held), -len(held) % self._block))
                    if not held:
                        yield waits
                        waits = None
            elif skip:
                skip -= 1
            else:
                held.append(one)
                if len(held) == self._block:
                    yield from self._mixed(held, shard, number)
                    number, held = number + 1, []
                    if waits is not None:
                        yield waits
                        waits = None
        yield from self._mixed(held, shard, number)

    def _mixed(self, held: list[Any], shard: int, number: int) -> list[Any]:
        random.Random(f"{self._seed} {shard} {number}").shuffle(held)  # noqa: S311 - no secret
        return held

    def words(self) -> Sequence[object]:
        return ("shuffle", self._block, self._seed)


class Batched:
    """Lists of `size` items; the last of a shard may be shorter."""

    def __init__(self, size: int) -> None:
        self._size = self.unit = size

    def run(self, flow: Flow, part: Any, _shard: int, /) -> Iterator[Any]:
        skip, held, waits = int(part or 0), list[Any](), None
        for one in flow:
            if type(one) is Barrier:
                if not skip:
                    waits = one.with_part(-len(held) % self._size)
                    if not held:
                        yield waits
                        waits = None
            elif skip:
                skip -= 1
            else:
                held.append(one)
                if len(held) == self._size:
                    yield held
                    held = []
                    if waits is not None:
                        yield waits
                        waits = None
        if held:
            yield held

    def words(self) -> Sequence[object]:
        return ("batch", self._size)


class PackedSequences:
    """Sequences of just `length` tokens, one document after the other, across their ends.

    A record is a document: a list or array of tokens, or a dict that has them under `key`. `end` follows each. The
    last sequence of a shard is filled up with `fill`. With `boundaries`, an item is a dict that has for each token its
    document in the sequence, from 0, and its position there since the document's begin in it, for attention that stays
    within documents; what fills up is of document -1. Else it is an array, or as the records a dict of one.
    """

    def __init__(self, length: int, end: int | None, fill: int, key: str, *, boundaries: bool) -> None:
        self._length, self._fill, self._key = length, fill, key
        self._end = None if end is None else np.array([end], np.int64)
        self.unit = length
        self._boundaries = boundaries
        self._told = False  # that other keys are left out

    def run(self, flow: Flow, part: Any, _shard: int, /) -> Iterator[Any]:
        length, skip = self._length, int(part or 0)
        held, count, waits, named, bare = list[NDArray[Any]](), 0, None, False, not self._boundaries
        for one in flow:
            if type(one) is Barrier:
                if not skip:
                    waits = one.with_part(-count % length)
                    if not count:
                        yield waits
                        waits = None
                continue
            tokens, named = self._tokens(one)
            pieces = (tokens,) if self._end is None else (tokens, self._end)
            size = len(tokens) + len(pieces) - 1
            if skip:
                cut = min(skip, size)
                pieces, skip, size = (np.concatenate(pieces, dtype=np.int64)[cut:],), skip - cut, size - cut
            if count + size < length:
                if size:
                    held.append(np.concatenate(pieces, dtype=np.int64))
                    count += size
                continue
            # Items are views of one array, which none of them shares with a record or another item.
            whole = np.concatenate((*held, *pieces), dtype=np.int64)
            end = len(whole) - len(whole) % length
            # Documents of the first item; each other one is of this record alone.
            documents = [*map(len, held), length - count] if self._boundaries else None
            for at in range(0, end, length):
                tokens = whole[at : at + length]
                yield tokens if bare and not named else self._item(tokens, documents or [length], named)
                documents = None
                if waits is not None:
                    yield waits
                    waits = None
            held, count = [whole[end:]] if end < len(whole) else [], len(whole) - end
        if count:
            missing = length - count
            filled = np.concatenate((*held, np.full(missing, self._fill, np.int64)))
            yield self._item(filled, [*map(len, held)], named, missing)

    def _tokens(self, record: Any) -> tuple[NDArray[Any], bool]:
        if type(record) is np.ndarray and record.ndim == 1 and record.size and record.dtype.kind in "iu":
            return record, False
        named = isinstance(record, Mapping)
        if named and self._key not in record:
            raise UsageError(f".pack(): a record has no {self._key!r}, it has {[*record]}: say key=")
        if named and len(record) > 1 and not self._told:
            self._told = True
            others = ", ".join(str(name) for name in record if name != self._key)
            logger.warning(".pack() keeps %r alone of a record, and leaves out: %s", self._key, others)
        found = record[self._key] if named else record
        try:
            tokens = found.numpy() if hasattr(found, "detach") else np.asarray(found)
        except ValueError:  # lists of several lengths in a list
            tokens = np.zeros((0, 0))
        if tokens.ndim != 1 or (tokens.size and tokens.dtype.kind not in "iu"):
            raise UsageError(
                f".pack(): a record is a {type(record).__name__} and no list of tokens: make one of it by .map(...)"
            )
        return (tokens if tokens.size else NO_TOKENS), named

    def _item(self, tokens: NDArray[Any], documents: list[int], named: bool, missing: int = 0) -> Any:
        if not self._boundaries:
            return {self._key: tokens} if named else tokens
        numbers = np.repeat(np.arange(len(documents), dtype=np.int32), documents)
        positions = np.concatenate([np.arange(count, dtype=np.int64) for count in documents])
        if missing:
            numbers = np.append(numbers, np.full(missing, MASK, np.int32))
            positions = np.append(positions, np.zeros(missing, np.int64))
        return {self._key: tokens, "document_ids": numbers, "position_ids": positions}

    def words(self) -> Sequence[object]:
        return (
            "pack",
            self._length,
            None if self._end is None else int(self._end[0]),
            self._fill,
            self._key,
            self._boundaries,
        )


class Mixer:
    """Items of several flows in fixed proportions, for as long as all of them have any: then of those that have.

    The next item is the flow's that is farthest behind its share. So the proportion is right up to one item at any
    place, and which flow comes next follows from how many items came of each.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        self._weights = tuple(weights)

    def run(self, open_flow: Callable[[int, Any], Iterator[Any]], part: Any) -> Iterator[Any]:
        """`open_flow(number, place)` opens a flow; None: at its begin."""
        size = len(self._weights)
        before = ([0] * size, [None] * size, [0] * size) if part is None else part
        taken, places, at = (list(one) for one in before)
        came = list(at)  # so many items of each flow lie behind us, or have come and were not wanted again
        flows = [open_flow(number, place) for number, place in enumerate(places)]
        live = set(range(size))
        while live:
            chosen = min(live, key=lambda number: ((taken[number] + 1) / self._weights[number], number))
            paused = False
            for one in flows[chosen]:
                if type(one) is Barrier:
                    places[chosen], at[chosen], paused = one.parts, came[chosen], True
                    continue
                came[chosen] += 1
                if came[chosen] > taken[chosen]:
                    taken[chosen] += 1
                    yield one
                    break
            else:
                live.remove(chosen)
            if paused:
                yield Barrier(((tuple(taken), tuple(places), tuple(at)),))

    def words(self) -> Sequence[object]:
        return ("mix", *self._weights)


def _failed(operator: str, function: Callable[..., Any], error: Exception) -> UsageError:
    """Return what a function of the script's has raised, as the script's fault: no shard is unreadable by it."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    where = "" if frame is None else f" ({Path(frame.tb_frame.f_code.co_filename).name}:{frame.tb_lineno})"
    told = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}{where}"
    return UsageError(f".{operator}({name_of(function)}) raises {told}: mend it, or leave such records out")


def name_of(function: Callable[..., Any]) -> str:
    """Return a name that is the same on all workers that run the same script."""
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def contents_check(item: Any, before: int = 0) -> int:
    """Return a checksum of an item, which is the same in each process: of what is long, of a part of its contents.

    It is to find a shard that gives something else each time, and would else take longer than all other work.
    """
    if type(item) is np.ndarray and item.ndim == 1 and not item.dtype.hasobject:  # as nearly all are
        size = len(item)
        return zlib.crc32(item[:: size // SAMPLED or 1].tobytes(), (before + size) & 0xFFFFFFFF)
    if hasattr(item, "detach"):
        item = _array_of(item)
    if isinstance(item, np.ndarray) and item.dtype.hasobject:
        item = item.tolist()
    if isinstance(item, np.ndarray):
        flat = item if item.ndim == 1 else item.reshape(-1)
        before = zlib.crc32(flat[:: max(1, item.size // SAMPLED)].tobytes(), (before + item.size) & 0xFFFFFFFF)
    elif isinstance(item, bytes | bytearray | memoryview):
        ends = bytes(item[:ENDS]) + bytes(item[ENDS:][-ENDS:])
        before = zlib.crc32(ends, (before + len(item)) & 0xFFFFFFFF)
    elif isinstance(item, Mapping):
        for name in item:
            before = contents_check(item[name], zlib.crc32(str(name).encode(), before))
    elif isinstance(item, list | tuple):
        for one in item:
            before = contents_check(one, before)
    elif isinstance(item, str | int | float | None):
        before = zlib.crc32(str(item).encode("utf-8", "surrogatepass"), before)
    return before  # of what is anything else, the check says nothing


def _array_of(tensor: Any) -> Any:
    """Return a tensor of torch's as an array; None of one that NumPy has nothing like, as a sparse one."""
    tensor = tensor.detach().cpu()
    try:
        return tensor.numpy()
    except (TypeError, RuntimeError):
        pass
    try:
        return tensor.float().numpy()  # bfloat16 and smaller
    except (TypeError, RuntimeError):
        return None


def whole_number(name: str, value: Any, least: int | None = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or (least is not None and value < least):
        at_least = "" if least is None else f", at least {least}"
        raise UsageError(f"{name} is {value!r}: it must be a whole number{at_least}")
    return int(value)
