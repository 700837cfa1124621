"""`edl.ElasticStream`: a stream as a script describes it, and its items from any place on.

Owns: which shards there are, how each is opened, which operators follow. Does not own: what operators do
(`edl.sources.streams.stream_operators`), who reads which shard (`edl.core.data.stream_parts`).
"""

from __future__ import annotations

import copy
import functools
import hashlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec
import numpy as np

from edl.errors import UsageError
from edl.sources.listing import DataFile, list_files
from edl.sources.streams import foreign_streams, stream_operators
from edl.sources.streams.shard_files import LARGEST, ShardFile, format_of_shard
from edl.sources.streams.stream_operators import Barrier, Mixer, Operator, contents_check, name_of, whole_number

BLOCK: Final = 64  # records between two places of a shard
AT_ONCE: Final = 8  # shards that a worker reads at once
NO_PLACE: Final = (
    "cannot tell its place, so a worker that takes over could not go on: give it state_dict() and load_state_dict(), "
    "as Hugging Face's and torchdata's streams have, or give a sequence, with __getitem__ and __len__"
)
LARGEST_PLACE: Final = 16 << 10  # bytes: the coordinator takes a million for those of all shards
TRIED: Final = 2  # records before the place that is tried
END: Final = object()
LARGE: Final = "edl's large number"
UNPLACED: Final = "the place that its state_dict() tells may have numbers, text, bytes, None, lists and dicts alone"


class ShardList(NamedTuple):
    """The shards of a stream, before any operator."""

    names: tuple[str, ...]  # the same on all workers
    open: Callable[[int], Any]  # its records, by the number of the shard


class ElasticStream:
    """Samples that have no length: items of the records of shards, each of which one worker reads at a time.

    Args:
        source: a function that returns the records of a shard: an iterable with `state_dict()` and
            `load_state_dict()`, or a sequence. Or files, each a shard: a path, a glob, a folder, a URL, or a list of
            these. Or a streaming dataset of Hugging Face's.
        shards: with a function, how many there are, and it is given numbers; or a list, and it is given what is in it.
        format: of files whose names do not say it: "text", "jsonl", "webdataset", "parquet", "arrow"; of a folder:
            "mds" (MosaicML), "litdata".
        endless: shards never end, so there are no epochs, and each worker reads all that are its own.
        at_once: shards that a worker reads at once.
        largest_record: bytes of a record in a file.
        unreadable: "skip" goes on without the rest of a shard that cannot be read, and says so; "fail" fails.

    A stream does not change: `.map`, `.filter`, `.shuffle`, `.pack` and `.batch` return another one, and so does
    `ElasticStream.mix`. What they make of a record must follow from that record alone.

    >>> stream = edl.ElasticStream(lambda shard: [shard * 10, shard * 10 + 1], shards=2)
    >>> for batch in edl.ElasticDataLoader(stream.map(lambda number: number + 0.5), 4, epochs=1):
    ...     print(sorted(batch.tolist()))
    ...     train_on(range(len(batch)))
    ...     committed = edl.notify_batch_end()
    [0.5, 1.5, 10.5, 11.5]
    """

    def __init__(  # noqa: PLR0913 - the names that users type
        self,
        source: Any,
        shards: int | Sequence[Any] | None = None,
        *,
        format: str | None = None,  # noqa: A002 - as of elastic_shard_generator
        endless: bool = False,
        at_once: int | None = None,
        largest_record: int = LARGEST,
        unreadable: Literal["fail", "skip"] = "fail",
    ) -> None:
        if unreadable not in ("fail", "skip"):
            raise UsageError(f'ElasticStream(unreadable={unreadable!r}): it is "fail" or "skip"')
        whole_number("largest_record", largest_record)
        self._origin = _origin(source, shards, format, largest_record)
        self._endless = endless
        self._at_once = 0 if endless else whole_number("at_once", AT_ONCE if at_once is None else at_once)
        self._skips = unreadable == "skip"
        self._operators: tuple[Operator, ...] = ()
        self._mixed: tuple[tuple[ElasticStream, ...], Mixer] | None = None

    # -------------------------------------------------------------------------------------------------- operators

    def map(self, function: Callable[[Any], Any]) -> ElasticStream:
        """Return a stream of `function(record)`; the same record gives the same each time."""
        return self._with(stream_operators.Mapped(_function("map", function)))

    def filter(self, keeps: Callable[[Any], Any]) -> ElasticStream:
        """Return a stream of the records of which `keeps(record)` is true."""
        return self._with(stream_operators.Filtered(_function("filter", keeps)))

    def shuffle(self, buffer: int, seed: int = 0) -> ElasticStream:
        """Return a stream in which each `buffer` records in a row of a shard are in an order of their own."""
        return self._with(stream_operators.Shuffled(whole_number("buffer", buffer), seed))

    def batch(self, size: int) -> ElasticStream:
        """Return a stream of lists of `size` items; each counts as one sample."""
        return self._with(stream_operators.Batched(whole_number("size", size)))

    def pack(
        self,
        length: int,
        *,
        eos: int | None = None,
        pad: int | None = None,
        key: str = "input_ids",
        boundaries: bool = False,
    ) -> ElasticStream:
        """Return a stream of sequences of just `length` tokens: one document after the other, each followed by `eos`.

        A record is a list or an array of tokens, or a dict with one under `key`; so is an item. The last sequence of a
        shard is filled up with `pad`, else with `eos`, else with 0. With `boundaries` an item is a dict with
        `document_ids` (from 0 in each sequence; -1 where it is filled up) and `position_ids` (from 0 in each document).
        """
        for name, token in (("eos", eos), ("pad", pad)):
            if token is not None:
                whole_number(f".pack({name}=...)", token, least=None)
        fill = pad if pad is not None else eos if eos is not None else 0
        return self._with(
            stream_operators.PackedSequences(whole_number("length", length), eos, fill, key, boundaries=boundaries)
        )

    @classmethod
    def mix(cls, streams: Mapping[str, tuple[ElasticStream, float]]) -> ElasticStream:
        """Return a stream of items of several streams, named, each with its weight: `{"web": (web, 9), "code": (code,
        1)}`. At any place the proportion is right up to one item of each shard, for as long as all have any.

        It has as many shards as the stream with the fewest.
        """
        if not streams or not isinstance(streams, Mapping):
            raise UsageError('ElasticStream.mix(): give {"name": (stream, weight), ...}')
        parts, weights = list[ElasticStream](), list[float]()
        given: Mapping[str, Any] = streams
        for name, pair in given.items():
            stream, weight = pair if isinstance(pair, tuple | list) and len(pair) == 2 else (None, 0)
            is_number = isinstance(weight, int | float | np.number) and math.isfinite(weight)
            if not isinstance(stream, ElasticStream) or not is_number or weight <= 0:
                raise UsageError(f"ElasticStream.mix(): {name!r} is to be (a stream, a weight above 0)")
            parts.append(stream)
            weights.append(float(weight))
        mixed = cls.__new__(cls)
        fewest = min(len(part.names) for part in parts)
        names = (" + ".join(f"{name} {shard}" for name in streams) for shard in range(fewest))
        mixed._origin = ShardList(tuple(names), _of_parts)
        mixed._endless = any(part._endless for part in parts)
        if mixed._endless and (
            unread := [name for name, part in zip(streams, parts, strict=True) if len(part.names) > fewest]
        ):
            raise UsageError(
                f"ElasticStream.mix(): {unread[0]!r} has more than {fewest} shards, and of a mixture with an endless "
                "stream the others would never be read: give all as many shards"
            )
        mixed._at_once = 0 if mixed._endless else min(part._at_once or AT_ONCE for part in parts)
        mixed._skips = all(part._skips for part in parts)
        mixed._operators, mixed._mixed = (), (tuple(parts), Mixer(weights))
        return mixed

    def _with(self, operator: Operator) -> ElasticStream:
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._operators = (*self._operators, operator)
        return other

    # ------------------------------------------------------------------------------------------- what edl asks for

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the shards."""
        return self._origin.names

    @property
    def endless(self) -> bool:
        return self._endless

    @property
    def at_once(self) -> int:
        """Shards that a worker reads at once; 0: all that are its own."""
        return self._at_once

    @property
    def skips(self) -> bool:
        """Tell whether the job goes on without the rest of a shard that cannot be read."""
        return self._skips

    @property
    def unit(self) -> int:
        """Tokens of an item; 1 where its items are no sequences of tokens."""
        tokens = 1 if self._mixed is None else max(part.unit for part in self._mixed[0])
        for operator in self._operators:  # a sequence has as many tokens as it says, whatever it is packed of
            is_packed = isinstance(operator, stream_operators.PackedSequences)
            tokens = operator.unit if is_packed else tokens * operator.unit
        return tokens

    @property
    def fingerprint(self) -> str:
        """Hash of what all workers must say alike: the shards, and what is made of their records."""
        told = repr((self._endless, self._at_once, self._words())).encode()
        return f"stream:{len(self.names)}:{hashlib.sha256(told).hexdigest()[:12]}"

    def _words(self) -> tuple[object, ...]:
        inner = () if self._mixed is None else (*(part._words() for part in self._mixed[0]), *self._mixed[1].words())
        return (_bare(self.names), inner, *(tuple(operator.words()) for operator in self._operators))

    def check(self) -> None:
        """Raise UsageError if a shard could not be gone on with, by what the first of them is."""
        if self._mixed is None:
            first, again = (placed(self._origin.open(0), self.names[0]) for _ in range(2))
            if first is again:
                raise UsageError(
                    f"ElasticStream(factory): for shard {self.names[0]} it gives the same {type(first).__name__} each "
                    "time, which has one place: make another one in each call"
                )
            _place_of(first, self.names[0])
            if not isinstance(first, OURS) and not foreign_streams.is_hugging_face(first):
                _try_place(first, again, self.names[0])
        else:
            for part in self._mixed[0]:
                part.check()

    def items(self, shard: int, place: Sequence[Any] | None = None) -> Iterator[Any]:
        """Yield the items of a shard, with a `Barrier` here and there, from the place of such a barrier on."""
        parts: Sequence[Any] = (None,) * (1 + len(self._operators)) if place is None else place
        flow = self._source(shard, parts[0])
        for operator, part in zip(self._operators, parts[1:], strict=True):
            flow = operator.run(flow, part, shard)
        return flow

    def __iter__(self) -> Iterator[Any]:
        """Yield all items, shard after shard, outside of any job."""
        for shard in range(len(self.names)):
            yield from (one for one in self.items(shard) if type(one) is not Barrier)

    def _source(self, shard: int, part: Any) -> Iterator[Any]:
        if self._mixed is None:
            return _records(placed(self._origin.open(shard), self.names[shard]), part, self.names[shard])
        streams, mixer = self._mixed
        fewest = len(self.names)
        return mixer.run(lambda number, at: streams[number]._chained(shard, fewest, at), part)

    def _chained(self, first: int, step: int, place: Any) -> Iterator[Any]:
        """Yield the items of the shards first, first + step, ..., one after the other."""
        begin, inner = (first, None) if place is None else place
        for shard in range(begin, len(self.names), step):
            for one in self.items(shard, inner):
                yield Barrier((shard, one.parts)) if type(one) is Barrier else one
            inner = None


def _bare(names: Sequence[str]) -> tuple[str, ...]:
    """Return names without the folder in which a host has them; with all that tells those of several folders apart."""
    bare = tuple(name.rpartition("/")[2] for name in names)
    if len(set(bare)) == len(bare):
        return bare
    shared = os.path.commonprefix(names).rpartition("/")[0]  # noqa: RUF071 - cut at a slash; names may be URLs
    return tuple(name[len(shared) :] for name in names)


def placed(records: Any, name: str) -> Any:
    """Return the records of a shard as what can tell its place. Raises UsageError."""
    if foreign_streams.has_rows_of_arrow(records):
        return foreign_streams.ArrowRows(records, BLOCK)
    if (node := foreign_streams.node_of(records)) is not None:
        return foreign_streams.NodeRecords(node)
    if hasattr(records, "state_dict") and hasattr(records, "load_state_dict"):
        return records
    if hasattr(records, "__getitem__") and hasattr(records, "__len__") and not isinstance(records, Mapping):
        return NumberedRecords(records)
    raise UsageError(f"ElasticStream: shard {name} is a {type(records).__name__}, which {NO_PLACE}")


class NumberedRecords:
    """A sequence whose place is a number."""

    def __init__(self, records: Any) -> None:
        self._records, self._next = records, 0

    def __iter__(self) -> Iterator[Any]:
        for number in range(self._next, len(self._records)):
            self._next = number + 1
            yield self._records[number]

    def state_dict(self) -> int:
        return self._next

    def load_state_dict(self, state_dict: int) -> None:
        self._next = state_dict


OURS: Final = (NumberedRecords, ShardFile, foreign_streams.ArrowRows)  # their places are known to be right


def _try_place(shard: Any, other: Any, name: str) -> None:
    """Raise UsageError if `other` does not go on where `shard` is, as it would for another worker: some count a record
    once the next one is asked for, which would be trained twice.
    """
    try:
        records = iter(shard)
        count = sum(next(records, END) is not END for _ in range(TRIED))
        other.load_state_dict(_arrived(_place_of(shard, name)))
        wanted, found = next(records, END), next(iter(other), END)
    except UsageError:
        raise
    except Exception:  # noqa: BLE001 - who reads the shard meets it again, tries again and tells of it
        return
    if (wanted is END) != (found is END) or contents_check(wanted) != contents_check(found):
        raise UsageError(
            f"ElasticStream: shard {name} cannot be gone on with: from the place that its state_dict() tells after "
            f"{count} records, another one reads other records than it does itself: count a record before it is "
            "given out (self.at += 1 above yield), heed load_state_dict() in __iter__, and give the same each time"
        )


def _place_of(shard: Any, name: str) -> Any:
    """Return where a shard is, as another worker gets it. Raises UsageError for what would come to it otherwise."""
    place = shard.state_dict()
    try:
        # A copy: a barrier waits in operators while the shard is read on, and a script's state may be its living one.
        encoded = msgspec.msgpack.encode(_sent(place))
        sent = msgspec.msgpack.decode(encoded, strict=False)
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise UsageError(
            f"ElasticStream: shard {name} cannot be gone on with: {UNPLACED} ({error}); leave order by "
            "chance and mixing to .shuffle(buffer) and ElasticStream.mix"
        ) from None
    if len(encoded) > LARGEST_PLACE:
        raise UsageError(
            f"ElasticStream: shard {name} cannot be gone on with: its state_dict() has {len(encoded)} bytes, and may "
            f"have {LARGEST_PLACE}: keep no records in it, and leave order by chance to .shuffle(buffer)"
        )
    if (arrives := _arrived(sent)) != place:
        raise UsageError(
            f"ElasticStream: shard {name} cannot be gone on with: {UNPLACED}: {str(place)[:200]} comes to another "
            f"worker as {str(arrives)[:200]}"
        )
    return sent


def _sent(place: Any) -> Any:
    """Return a place in which numbers that messages cannot hold are text: those of the state of NumPy's generators."""
    if isinstance(place, dict):
        return {name: _sent(part) for name, part in place.items()}
    if isinstance(place, list):
        return [_sent(part) for part in place]
    is_large = type(place) is int and not -(1 << 63) <= place < 1 << 64
    return {LARGE: str(place)} if is_large else place


def _arrived(sent: Any) -> Any:
    """Return the place of which `_sent` was made."""
    if isinstance(sent, dict):
        return int(sent[LARGE]) if LARGE in sent else {name: _arrived(part) for name, part in sent.items()}
    return [_arrived(part) for part in sent] if isinstance(sent, list) else sent


def _records(shard: Any, state: Any, name: str) -> Iterator[Any]:
    if state is not None:
        shard.load_state_dict(_arrived(state))
    count, place = 0, None
    for record in shard:
        if place is not None:
            # Not before: behind the last record, where there is none, some iterables begin anew.
            yield Barrier((place,))
            place = None
        yield record
        count += 1
        if count == BLOCK:
            count, place = 0, _place_of(shard, name)


def _origin(source: Any, shards: int | Sequence[Any] | None, kind: str | None, largest: int) -> ShardList:
    if isinstance(source, str | os.PathLike) or (
        isinstance(source, list | tuple) and source and all(isinstance(one, str | os.PathLike) for one in source)
    ):
        if shards is not None:
            raise UsageError("ElasticStream(files, shards=...): each file is a shard, so leave shards= away")
        return _files(source, kind, largest)
    if kind is not None:
        raise UsageError(f"ElasticStream(format={kind!r}) means files: give their paths")
    if foreign_streams.is_hugging_face(source):
        return ShardList(*foreign_streams.hugging_face(source))
    if not callable(source) or (shards is None and hasattr(source, "__iter__")):
        return _single(source, shards)
    if shards is None:
        raise UsageError("ElasticStream(factory): say how many shards there are, shards=64, or which, shards=[...]")
    if isinstance(shards, str) or not isinstance(shards, Iterable):
        count = whole_number("shards", shards)
        return ShardList(tuple(f"{name_of(source)} {shard}" for shard in range(count)), source)
    given = list(shards)
    if not given:
        raise UsageError("ElasticStream(factory, shards=[]): there is no shard")
    return ShardList(tuple(map(str, given)), functools.partial(_of_name, source, given))


# Functions by name, no lambdas: a stream may go to processes that do not begin as a copy of this one.
def _of_name(factory: Callable[[Any], Any], given: Sequence[Any], shard: int) -> Any:
    return factory(given[shard])


def _of_file(files: Sequence[DataFile], kind: str, largest: int, shard: int) -> ShardFile:
    return ShardFile(files[shard], kind, largest)


def _of_parts(_shard: int) -> None:
    """Open nothing: the records of a mixture are those of its parts."""


def _function(operator: str, given: Any) -> Callable[[Any], Any]:
    if not callable(given):
        raise UsageError(f".{operator}({given!r}): give a function of a record")
    return given  # type: ignore[no-any-return]


def _single(source: Any, shards: Any) -> ShardList:
    """Return a stream of one shard: an iterable that tells its place."""
    if isinstance(source, list | tuple) and not source:
        raise UsageError("ElasticStream([]): there is no shard: check where the list of files comes from")
    if shards is not None or not isinstance(source, Iterable):
        raise UsageError(
            f"ElasticStream(source={type(source).__name__}): source is a function that returns the records of a shard, "
            "with shards=, or files, or a streaming dataset"
        )
    name = type(source).__name__
    records = placed(source, name)
    stateful: Any = source if foreign_streams.node_of(source) is None else records
    begin = copy.deepcopy(stateful.state_dict()) if hasattr(stateful, "state_dict") else None
    return ShardList((name,), functools.partial(_copied, stateful, begin, name))


def _copied(source: Any, begin: Any, name: str, _shard: int) -> Any:
    """Return a copy, at the place `begin`: an iterable has one place, and two epochs may be read at once."""
    if begin is None:
        return source
    try:
        one = copy.deepcopy(source)
    except Exception as error:
        raise UsageError(
            f"ElasticStream({name}): it cannot be copied ({error}), as two epochs of it may be read at once: give a "
            "function that makes it, ElasticStream(lambda shard: ..., shards=1)"
        ) from error
    one.load_state_dict(copy.deepcopy(begin))
    return one


def _files(source: Any, kind: str | None, largest: int) -> ShardList:
    entries = [os.fsdecode(one) for one in ([source] if isinstance(source, str | os.PathLike) else source)]
    if kind == "mds":
        return ShardList(*foreign_streams.mds(entries))
    if kind == "litdata":
        return ShardList(*foreign_streams.litdata(entries))
    files = list_files(entries)
    kinds = {format_of_shard(file.name, kind) for file in files}
    if len(kinds) > 1:
        raise UsageError(f"ElasticStream(): the files are {' and '.join(sorted(kinds))}: a stream has one format")
    found = kinds.pop()
    return ShardList(tuple(file.name for file in files), functools.partial(_of_file, files, found, largest))
