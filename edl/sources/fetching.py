"""Reading of byte spans from files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from edl.sources.file_errors import shrunk, unreadable
from edl.sources.listing import DataFile


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
