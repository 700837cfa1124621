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

import random
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from edl.errors import DataError, UsageError

Flow = Iterable[Any]  # records or items, with a Barrier here and there

SAMPLED: Final = 64  # elements of an array that go into a checksum
MASK: Final = -1  # the document of tokens that only fill up the last item of a shard


class Barrier:
    """A place between two records: the parts of the source and of all operators that it has gone through."""

    __slots__ = ("parts",)

    def __init__(self, parts: tuple[Any, ...]) -> None:
        self.parts = parts

    def with_part(self, part: Any) -> Barrier:
        return Barrier((*self.parts, part))


class Operator(Protocol):
    unit: int  # so many of what comes in make one of what goes out, where that is always so

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
            yield one.with_part(None) if type(one) is Barrier else function(one)

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
            elif keeps(one):
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
        self._length, self._end, self._fill, self._key = length, end, fill, key
        self.unit = length
        self._boundaries = boundaries

    def run(self, flow: Flow, part: Any, _shard: int, /) -> Iterator[Any]:
        length, skip = self._length, int(part or 0)
        held, count, waits, named = list[NDArray[Any]](), 0, None, False
        for one in flow:
            if type(one) is Barrier:
                if not skip:
                    waits = one.with_part(-count % length)
                    if not count:
                        yield waits
                        waits = None
                continue
            tokens, named = self._tokens(one)
            if skip:
                cut = min(skip, len(tokens))
                skip, tokens = skip - cut, tokens[cut:]
            while count + len(tokens) >= length:
                room = length - count
                yield self._item([*held, tokens[:room]], named)
                held, count, tokens = [], 0, tokens[room:]
                if waits is not None:
                    yield waits
                    waits = None
            if len(tokens):
                held.append(tokens)
                count += len(tokens)
        if count:
            yield self._item(held, named, missing=length - count)

    def _tokens(self, record: Any) -> tuple[NDArray[Any], bool]:
        named = isinstance(record, Mapping)
        if named and self._key not in record:
            raise DataError(f".pack(): a record has no {self._key!r}, it has {[*record]}: say key=")
        found = record[self._key] if named else record
        try:
            tokens = found.numpy() if hasattr(found, "detach") else np.asarray(found)
        except ValueError:  # lists of several lengths in a list
            tokens = np.zeros((0, 0))
        if tokens.ndim != 1 or (tokens.size and tokens.dtype.kind not in "iu"):
            raise DataError(
                f".pack(): a record is a {type(record).__name__} and no list of tokens: make one of it by .map(...)"
            )
        tokens = tokens.astype(np.int64, copy=False)
        return (tokens if self._end is None else np.append(tokens, self._end)), named

    def _item(self, pieces: list[NDArray[Any]], named: bool, missing: int = 0) -> Any:
        filled = [*pieces, np.full(missing, self._fill, np.int64)] if missing else pieces
        tokens = np.concatenate(filled)
        if not self._boundaries:
            return {self._key: tokens} if named else tokens
        lengths = [len(piece) for piece in pieces]
        documents = np.repeat(np.arange(len(pieces), dtype=np.int32), lengths)
        positions = np.concatenate([np.arange(count, dtype=np.int64) for count in lengths])
        if missing:
            documents = np.append(documents, np.full(missing, MASK, np.int32))
            positions = np.append(positions, np.zeros(missing, np.int64))
        return {self._key: tokens, "document_ids": documents, "position_ids": positions}

    def words(self) -> Sequence[object]:
        return ("pack", self._length, self._end, self._fill, self._key, self._boundaries)


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


def name_of(function: Callable[..., Any]) -> str:
    """Return a name that is the same on all workers that run the same script."""
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def contents_check(item: Any, before: int = 0) -> int:
    """Return a checksum of an item, which is the same in each process: of what is long, of a part of its contents.

    It is to find a shard that gives something else each time, and would else take longer than all other work.
    """
    if hasattr(item, "detach"):
        item = _array_of(item)
    if isinstance(item, np.ndarray) and item.dtype.hasobject:
        item = item.tolist()
    if isinstance(item, np.ndarray):
        flat = item if item.ndim == 1 else item.reshape(-1)
        before = zlib.crc32(flat[:: max(1, item.size // SAMPLED)].tobytes(), (before + item.size) & 0xFFFFFFFF)
    elif isinstance(item, bytes | bytearray | memoryview):
        ends = bytes(item[: 4 * SAMPLED]) + bytes(item[4 * SAMPLED :][-4 * SAMPLED :])
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
