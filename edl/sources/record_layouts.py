"""Layouts of records in files: lines of text or JSON, TFRecord, and rows of CSV.

Of CSV, Python's csv module defines the result. If all quotes stand where the RFC has them, a newline ends a row just if
an even number of quotes is before it, which is quick to find; else the module is asked row by row.
"""

from __future__ import annotations

import csv
import io
import json
import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from edl.sources.file_errors import BadRecord
from edl.sources.source_port import Numbers


def mask_of(characters: bytes) -> NDArray[np.bool_]:
    """Return an array that says for each byte value whether it is one of `characters`."""
    mask = np.zeros(256, np.bool_)
    mask[list(characters)] = True
    return mask


BLANK = mask_of(b" \t\r\n")


def line_ends(data: bytes, last: bool) -> Numbers:
    """Return where lines of `data` end, each behind its newline. `last` means that nothing follows `data`, so a rest
    without a newline is a line too.
    """
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")) + 1
    if last and len(data) > (ends[-1] if ends.size else 0):
        ends = np.append(ends, len(data))
    return ends


def decoded(raw: bytes) -> str:
    """Decode UTF-8. Raises ValueError with a message for people."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} of the record is no UTF-8 ({error.reason})") from None


class TextLines:
    """The layout of text: every line, even an empty one, is a record: a str without its newline (LF or CRLF)."""

    text = True
    headed = False

    def columns(self, _head: bytes) -> None:
        """Return None: there is no head."""

    def ends(self, data: bytes, last: bool) -> Numbers:
        return line_ends(data, last)

    def record(self, raw: bytes, _head: bytes) -> str:
        return decoded(raw).removesuffix("\n").removesuffix("\r")


class JsonLines:
    """The layout of JSON Lines: every line that is not blank is a record, the value that Python's
    json reads from it.
    """

    text = True
    headed = False

    def columns(self, _head: bytes) -> None:
        """Return None: there is no head."""

    def ends(self, data: bytes, last: bool) -> Numbers:
        ends = line_ends(data, last)
        if not ends.size:
            return ends
        starts = np.append(0, ends[:-1])
        suspects = np.flatnonzero(BLANK[np.frombuffer(data, np.uint8)[starts]])
        blank = [line for line in suspects.tolist() if not data[starts[line] : ends[line]].strip()]
        return np.delete(ends, blank) if blank else ends

    def record(self, raw: bytes, _head: bytes) -> Any:
        try:
            return json.loads(decoded(raw))
        except json.JSONDecodeError as error:
            raise ValueError(f"no JSON: {error}") from None


# A TFRecord file has length, checksum of the length, data, checksum of the data. The record is the data.
#
# edl has a reader of its own, because the format is four fields, and the well-kept readers come with TensorFlow;
# google-crc32c computes the checksums (docs/decisions/files.md).


HEAD = struct.Struct("<QI")  # length, and its checksum
FOOT = struct.Struct("<I")  # checksum of the data
MASK_DELTA = 0xA282EAD8


class TFRecords:
    text = False
    headed = False

    def columns(self, _head: bytes) -> None:
        """Return None: there is no head."""

    def ends(self, data: bytes, last: bool) -> Numbers:
        ends, at = [], 0
        while len(data) - at >= HEAD.size:
            end = at + HEAD.size + _length(data, at) + FOOT.size
            if end > len(data):
                break
            ends.append(end)
            at = end
        if last and at < len(data):
            raise BadRecord(at, "the file ends in the middle of a record")
        return np.array(ends, np.int64)

    def record(self, raw: bytes, _head: bytes) -> bytes:
        data = raw[HEAD.size : -FOOT.size]
        if _checksum(data) != FOOT.unpack_from(raw, len(raw) - FOOT.size)[0]:
            raise ValueError("the checksum of the record's data is wrong")
        return data


def _length(data: bytes, at: int) -> int:
    length, checksum = HEAD.unpack_from(data, at)
    if _checksum(data[at : at + 8]) != checksum:
        raise BadRecord(at, "the checksum of the record's length is wrong (is it a TFRecord file?)")
    return int(length)


def _checksum(data: bytes) -> int:
    """Return the CRC-32C, rotated and shifted as TensorFlow does."""
    crc = google_crc32c.value(data)
    return int((((crc >> 15) | (crc << 17)) + MASK_DELTA) & 0xFFFFFFFF)


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
