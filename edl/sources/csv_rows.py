"""Records that are rows of CSV (RFC 4180, with a header): dicts of str, by column.

Python's csv module defines the result. If all quotes stand where the RFC has them, a newline ends a row just if an even
number of quotes is before it, which is quick to find; else the module is asked row by row.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from edl.sources.file_errors import BadRecord
from edl.sources.lines import decoded, line_ends, mask_of
from edl.sources.source_port import Numbers

Codes = NDArray[np.uint8]

QUOTE = ord('"')
OPENS_BEHIND, CLOSES_BEFORE = mask_of(b',\n"'), mask_of(b',\r\n"')


class CsvRows:
    """The layout of CSV. Blank lines are no rows. A row has as many fields as the header, or it is an error."""

    text = True
    headed = True

    def columns(self, head: bytes) -> tuple[str, ...]:
        return _columns(head)

    def ends(self, data: bytes, last: bool) -> Numbers:
        codes = np.frombuffer(data, np.uint8)
        quotes = np.flatnonzero(codes == QUOTE)
        if not _regular(codes, quotes, last):
            return np.fromiter(_ends_by_csv(data, last), np.int64)
        ends = line_ends(data, last)
        if quotes.size:
            ends = ends[np.searchsorted(quotes, ends) % 2 == 0]
        return _without_blanks(codes, ends)

    def record(self, raw: bytes, head: bytes) -> dict[str, str]:
        names, fields = _columns(head), _fields(raw)
        if len(fields) != len(names):
            raise ValueError(f"the row has {len(fields)} fields and the header {len(names)}")
        return dict(zip(names, fields, strict=True))


@lru_cache(maxsize=8)
def _columns(head: bytes) -> tuple[str, ...]:
    """Return the names of the columns. Raises ValueError."""
    names = _fields(head)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"the header names the column {twice!r} twice")
    return tuple(names)


def _fields(raw: bytes) -> list[str]:
    line = decoded(raw).removeprefix("\ufeff").lstrip("\r\n")
    try:
        (fields,) = csv.reader((line,), strict=True)
    except csv.Error as error:
        raise ValueError(f"no CSV: {error}") from None
    return fields


def _regular(codes: Codes, quotes: Numbers, last: bool) -> bool:
    """Check that each odd quote opens a field or is the second of two, and each even quote closes a field or is the
    first of two.
    """
    opening, closing = quotes[0::2], quotes[1::2]
    opens = (opening == 0) | OPENS_BEHIND[codes[opening - 1]]
    closes = (closing == len(codes) - 1) | CLOSES_BEFORE[codes[(closing + 1) % len(codes)]] if closing.size else closing
    return bool(opens.all() and closes.all() and not (last and len(quotes) % 2))


def _without_blanks(codes: Codes, ends: Numbers) -> Numbers:
    if not ends.size:
        return ends
    starts = np.append(0, ends[:-1])
    lengths = ends - starts - (codes[ends - 1] == ord("\n"))
    keep: NDArray[np.bool_] = (lengths > 1) | ((lengths == 1) & (codes[starts] != ord("\r")))
    return ends[keep]


def _ends_by_csv(data: bytes, last: bool) -> Iterator[int]:
    """Yield where rows end. Each byte is read as one character: quotes, commas and newlines are single bytes in UTF-8,
    and never part of other characters.
    """
    lines = _Lines(data)
    rows = csv.reader(lines, strict=True)
    while True:
        start = lines.end
        try:
            row = next(rows, None)
        except csv.Error as error:
            if lines.exhausted and not last:
                return  # the rest of the row has not been read yet
            reason = "a quote is opened and never closed" if lines.exhausted else str(error)
            raise BadRecord(start, f"no CSV: {reason}") from None
        if row is None or (not last and not lines.complete):
            return
        if row:
            yield lines.end


class _Lines:
    """The lines for the csv module, which takes one after the other; `end` is the offset behind the
    lines taken so far.
    """

    def __init__(self, data: bytes) -> None:
        self._text = io.StringIO(data.decode("latin-1"), newline="\n")
        self.end = 0
        self.complete = True
        self.exhausted = False

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self._text.readline()
        if not line:
            self.exhausted = True
            raise StopIteration
        self.end += len(line)
        self.complete = line[-1] == "\n"
        return line
