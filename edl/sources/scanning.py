"""The one scan of files from end to end that finds where their records lie.

The same `ends` cuts files here and spans of them later, so the two cannot disagree.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from edl.sources.file_errors import BadRecord, changed, corrupt, fault, shrunk, unreadable
from edl.sources.listing import DataFile
from edl.sources.record_places import STRIDE, Table, table_of
from edl.sources.source_port import Numbers

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
