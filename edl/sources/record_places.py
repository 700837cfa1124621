"""The places of records: a sparse table from the number of a record to its file and its place in the file.

The table's three rows are the number of a record, the number of its file, and where the record begins there: a byte, or
a row group. A column is kept for the first record in each `STRIDE` bytes, so the table is 0.3 % of the data at most,
and it may be mapped from the cache instead of loaded. The last column holds the number of all records, and of all
files.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edl.sources.listing import DataFile
from edl.sources.source_port import Numbers

STRIDE = 8192
NUMBER, FILE, BEGIN = range(3)

Table = NDArray[np.int64]


class Placed:
    """Base class of sources whose records lie at the places of a table. Subclasses read the records."""

    def __init__(self, files: Sequence[DataFile], table: Table, fingerprint: str) -> None:
        self._files = files
        self._table = table
        self._fingerprint = fingerprint

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    def __len__(self) -> int:
        return total_of(self._table)


def table_of(parts: list[Table], total: int, files: int) -> Table:
    """Join the columns of `parts` and add the last column."""
    return np.concatenate([*parts, np.array([[total], [files], [0]], np.int64)], axis=1)


def is_table(table: Table, files: int) -> bool:
    """Tell whether `table_of` could have made this table for `files` files."""
    shaped = table.dtype == np.int64 and table.ndim == 2 and len(table) == 3 and table.shape[1] > 0
    return bool(shaped and table[FILE, -1] == files and (np.diff(table[NUMBER]) > 0).all())


def total_of(table: Table) -> int:
    return int(table[NUMBER, -1])


def columns_of(table: Table, numbers: Numbers) -> Numbers:
    """Return, for each record, the column at or before it. Raises IndexError."""
    if numbers.size and not 0 <= numbers.min() <= numbers.max() < total_of(table):
        raise IndexError(f"there are records 0 to {total_of(table) - 1} only")
    return np.searchsorted(table[NUMBER], numbers, side="right").astype(np.int64) - 1
