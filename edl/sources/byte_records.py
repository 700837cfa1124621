"""A source whose records are runs of bytes. One scan finds where they lie; one is read with kilobytes around it."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

import numpy as np

from edl.sources.file_errors import BadRecord, changed, corrupt, fault, shrunk, unreadable
from edl.sources.listing import DataFile
from edl.sources.record_places import BEGIN, FILE, STRIDE, Placed, Table, columns_of, table_of
from edl.sources.source_port import Numbers

# The same `ends` cuts files here and spans of them later, so the two cannot disagree.


CHUNK = 4 << 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Layout(Protocol):
    """The rules by which the bytes of one format are cut into records."""

    @property
    def text(self) -> bool:
        """True if the files are text, which may begin with a byte order mark."""

    @property
    def headed(self) -> bool:
        """True if each file begins with a head, which is no record."""

    def columns(self, head: bytes, /) -> Hashable:
        """Return the part of a head that must be equal in all files. Raises ValueError."""

    def ends(self, data: bytes, last: bool) -> Numbers:
        """Return where records end in `data`, which begins with a record; `last` means that nothing follows. Raises
        BadRecord.
        """

    def record(self, raw: bytes, head: bytes, /) -> Any:
        """Return the value of a record's bytes. Raises ValueError."""


def scan(files: Sequence[DataFile], layout: Layout) -> Table:
    """Return the table of all records of `files`. Raises DataError."""
    parts, total, heads = [], 0, _Heads(layout)
    for number, file in enumerate(files):
        awaited = layout.headed
        for begin, ends, data in _cut(file, layout):
            starts = np.concatenate([[begin], begin + ends[:-1]])
            if awaited:
                heads.see(file, data[: ends[0]])
                starts, awaited = starts[1:], False
            kept = np.flatnonzero(np.diff(starts // STRIDE, prepend=-1))
            parts.append(np.stack([total + kept, np.full(len(kept), number), starts[kept]]))
            total += len(starts)
    return table_of(parts, total, len(files))


class _Heads:
    """The heads of all files, which must agree."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._first: tuple[DataFile, Hashable] | None = None

    def see(self, file: DataFile, head: bytes) -> None:
        try:
            columns = self._layout.columns(head)
        except ValueError as error:
            raise corrupt(file.name, "byte 0", str(error)) from None
        first, expected = self._first = self._first or (file, columns)
        if columns != expected:
            raise fault(file.name, f"has the columns {columns}, but {first.name} has {expected}")


def _cut(file: DataFile, layout: Layout) -> Iterator[tuple[int, Numbers, bytes]]:
    """Yield parts that begin with a record: where the part begins, where records end in it, and its bytes. A record may
    be larger than a chunk.
    """
    begin, parts, enough = 0, [b""], 0
    for chunk in _chunks(file):
        parts.append(chunk)
        if chunk and sum(map(len, parts)) < enough:
            continue
        data = b"".join(parts)
        if begin == 0 and layout.text and data.startswith(BYTE_ORDER_MARK):
            begin, data = len(BYTE_ORDER_MARK), data[len(BYTE_ORDER_MARK) :]
        ends = _ends(file, layout, begin, data, last=not chunk)
        enough = 0 if ends.size else 2 * len(data)
        parts = [data]
        if ends.size:
            yield begin, ends, data
            begin, parts = begin + int(ends[-1]), [data[ends[-1] :]]


def _ends(file: DataFile, layout: Layout, begin: int, data: bytes, *, last: bool) -> Numbers:
    try:
        return layout.ends(data, last)
    except BadRecord as error:
        raise corrupt(file.name, f"byte {begin + error.offset}", error.reason) from None


def _chunks(file: DataFile) -> Iterator[bytes]:
    """Yield all bytes of a file, and b"" at the end, at which the caller handles the rest."""
    done = 0
    try:
        with file.fs.open(file.path, "rb") as stream:
            while chunk := stream.read(CHUNK):
                done += len(chunk)
                yield chunk
    except Exception as error:  # whatever the file system's library raises
        raise unreadable(file.name, f"byte {done}", error) from error
    if done < file.size:
        raise shrunk(file.name, done, file.size)
    if done > file.size:
        raise changed(file.name, f"byte {file.size} (it has grown)")
    yield b""


@dataclass(frozen=True, slots=True)
class RecordSpan:
    """Successive whole records of one file."""

    file: DataFile
    number: int  # number of the first record
    count: int
    start: int
    stop: int


def fetch(spans: Iterable[RecordSpan]) -> Iterator[tuple[RecordSpan, bytes]]:
    """Yield each span and its bytes. Raises DataError."""
    for fs, some in groupby(spans, lambda span: span.file.fs):
        theirs = list(some)
        found = _read(theirs) if theirs[0].file.is_local else _fetched(fs, theirs)
        for span, data in zip(theirs, found, strict=True):
            if len(data) < span.stop - span.start:
                raise shrunk(span.file.name, span.start + len(data), span.file.size)
            yield span, data


def _read(spans: Sequence[RecordSpan]) -> Iterator[bytes]:
    """Read many spans of few local files, at a tenth of the cost of opening the file for each span."""
    for file, theirs in groupby(spans, lambda span: span.file):
        place = 0
        try:
            with open(file.path, "rb", buffering=0) as stream:  # noqa: PTH123 - fsspec's path
                for span in theirs:
                    place = span.start
                    yield os.pread(stream.fileno(), span.stop - span.start, span.start)
        except OSError as error:
            raise unreadable(file.name, f"byte {place}", error) from error


def _fetched(fs: Any, spans: Sequence[RecordSpan]) -> Iterator[bytes]:
    """Read all spans in one call, which some file systems carry out concurrently."""
    paths, starts, stops = zip(*((span.file.path, span.start, span.stop) for span in spans), strict=True)
    for span, data in zip(spans, fs.cat_ranges(list(paths), list(starts), list(stops)), strict=True):
        if isinstance(data, Exception):
            raise unreadable(span.file.name, f"byte {span.start}", data) from data
        yield bytes(data)


SPAN_BYTES = 8 << 20  # adjacent records are read at once up to this size


class RowSource(Placed):
    """Records of `files`, cut by `layout`, at the places of `table`."""

    def __init__(self, files: Sequence[DataFile], layout: Layout, table: Table, fingerprint: str) -> None:
        super().__init__(files, table, fingerprint)
        self._layout = layout
        self._head: bytes | None = None

    def read(self, ids: Numbers | Sequence[int]) -> list[Any]:
        numbers = np.asarray(ids, np.int64)
        order = np.argsort(numbers, kind="stable")
        wanted = numbers[order]
        head = self._head_of_all() if numbers.size else b""
        found: list[Any] = [None] * len(numbers)
        for span, data in fetch(self._spans(np.unique(columns_of(self._table, wanted)))):
            begin, end = np.searchsorted(wanted, [span.number, span.number + span.count])
            ends = self._ends(span, data)
            for place, number in zip(order[begin:end].tolist(), wanted[begin:end].tolist(), strict=True):
                found[place] = self._record(span, data, ends, number - span.number, head)
        return found

    def _spans(self, columns: Numbers) -> Iterator[RecordSpan]:
        """Yield spans; adjacent columns of one file are merged into one span."""
        kind = self._table[FILE, columns], self._table[BEGIN, columns] // SPAN_BYTES
        apart = (np.diff(columns) != 1) | np.logical_or(*(np.diff(one) != 0 for one in kind))
        for run in np.split(columns, np.flatnonzero(apart) + 1) if columns.size else ():
            yield self._span(int(run[0]), int(run[-1]))

    def _span(self, first: int, last: int) -> RecordSpan:
        number, file_number, start = self._table[:, first].tolist()
        next_number, next_file, stop = self._table[:, last + 1].tolist()
        file = self._files[file_number]
        return RecordSpan(file, number, next_number - number, start, stop if next_file == file_number else file.size)

    def _ends(self, span: RecordSpan, data: bytes) -> Numbers:
        try:
            ends = self._layout.ends(data, True)
        except BadRecord as error:
            raise corrupt(span.file.name, f"byte {span.start + error.offset}", error.reason) from None
        if len(ends) != span.count:
            raise changed(span.file.name, f"bytes {span.start} to {span.stop}")
        return ends

    def _record(self, span: RecordSpan, data: bytes, ends: Numbers, index: int, head: bytes) -> Any:
        start = int(ends[index - 1]) if index else 0
        try:
            return self._layout.record(data[start : ends[index]], head)
        except ValueError as error:
            place = f"byte {span.start + start} (sample {span.number + index})"
            raise corrupt(span.file.name, place, str(error)) from None

    def _head_of_all(self) -> bytes:
        """Return the head of the first file that has records; all heads are equal. A head ends
        where the records begin.
        """
        if self._head is None:
            _, file, begin = self._table[:, 0].tolist()
            heads = [RecordSpan(self._files[file], 0, 0, 0, begin)] if self._layout.headed else []
            self._head = next((data for _, data in fetch(heads)), b"")
        return self._head
