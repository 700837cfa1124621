"""A source whose records are rows of Parquet files: dicts of Python values, by column. pyarrow does the reading.

A row can only be read by decoding its row group. Decoded groups are kept: in memory up to `KEPT_BYTES`, and, once a
group had to be decoded again (as a shuffle causes), in the cache of this host, from where rows are mapped.
"""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edl.errors import ConfigError, DataError
from edl.sources.cache import Cache
from edl.sources.file_errors import changed, corrupt, fault, shrunk, unreadable
from edl.sources.listing import DataFile
from edl.sources.record_places import BEGIN, FILE, NUMBER, Placed, Table, columns_of, table_of
from edl.sources.source_port import Numbers

try:
    import pyarrow as pa
    import pyarrow.ipc
    import pyarrow.parquet as pq
except ModuleNotFoundError as _missing:  # an extra
    raise ConfigError("Parquet needs pyarrow, which is not installed: pip install 'horovod-edl[parquet]'") from _missing

KEPT_BYTES = 256 << 20
KEPT_GROUPS = 256  # a mapped group costs a file descriptor
SPARE = 4  # a group goes into the cache only if this many times its size are free


def scan(files: Sequence[DataFile]) -> Table:
    """Return the table of all rows, from the files' metadata alone. Raises DataError."""
    parts, total, first = [], 0, None
    for number, file in enumerate(files):
        metadata = _metadata(file)
        columns = tuple(metadata.schema.to_arrow_schema().names)
        if first is None:
            first = file, columns
        elif first[1] != columns:
            raise fault(file.name, f"has the columns {columns}, but {first[0].name} has {first[1]}")
        counts = np.array([metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)], np.int64)
        starts = total + np.cumsum(counts) - counts
        groups = np.flatnonzero(counts)
        parts.append(np.stack([starts[groups], np.full(len(groups), number), groups]))
        total += int(counts.sum())
    return table_of(parts, total, len(files))


class ParquetSource(Placed):
    """Rows of `files` at the places of `table`."""

    def __init__(self, files: Sequence[DataFile], table: Table, fingerprint: str, cache: Cache) -> None:
        super().__init__(files, table, fingerprint)
        self._cache = cache
        self._kept: OrderedDict[int, tuple[pa.Table, int]] = OrderedDict()  # decoded groups, and their sizes in memory
        self._met: set[int] = set()

    def read(self, ids: Numbers | Sequence[int]) -> list[Any]:
        numbers = np.asarray(ids, np.int64)
        columns = columns_of(self._table, numbers)
        found: list[Any] = [None] * len(numbers)
        for column in np.unique(columns).tolist():
            places = np.flatnonzero(columns == column)
            rows = self._group(column).take(pa.array(numbers[places] - self._table[NUMBER, column]))
            for place, record in zip(places.tolist(), rows.to_pylist(), strict=True):
                found[place] = record
        return found

    def _group(self, column: int) -> pa.Table:
        group, size = self._kept.pop(column) if column in self._kept else self._found(column)
        self._kept[column] = group, size  # the newest is the last
        while len(self._kept) > 1 and (self._size() > KEPT_BYTES or len(self._kept) > KEPT_GROUPS):
            self._kept.popitem(last=False)
        return group

    def _size(self) -> int:
        return sum(size for _, size in self._kept.values())

    def _found(self, column: int) -> tuple[pa.Table, int]:
        """Return a group that is not in memory, from the cache or decoded, and the memory that it takes."""
        mapped = _mapped(self._cache.found(self._key(column)))
        if mapped is not None:
            return mapped, 0
        group = self._decode(column)
        if column in self._met and group.nbytes * SPARE < self._cache.free_bytes():
            self._cache.offer(self._key(column), lambda draft: _write(group, draft))
        self._met.add(column)
        return group, group.nbytes

    def _key(self, column: int) -> str:
        file = self._files[self._table[FILE, column]]
        return f"group\n{file.name}\n{file.size}\n{file.version}\n{self._table[BEGIN, column]}"

    def _decode(self, column: int) -> pa.Table:
        number, file_number, group = self._table[:, column].tolist()
        file, place = self._files[file_number], f"row group {group}"
        try:
            with file.fs.open(file.path, "rb") as stream:
                _check_size(file, stream)
                found = pq.ParquetFile(stream).read_row_group(group)
        except DataError:
            raise
        except Exception as error:  # whatever pyarrow and the file system's library raise
            raise _failed(file, place, error) from error
        if number + found.num_rows != self._table[NUMBER, column + 1]:
            raise changed(file.name, place)
        return found


def _metadata(file: DataFile) -> Any:
    try:
        with file.fs.open(file.path, "rb") as stream:
            _check_size(file, stream)
            return pq.read_metadata(stream)
    except DataError:
        raise
    except Exception as error:  # whatever pyarrow and the file system's library raise
        raise _failed(file, "the footer", error) from error


def _check_size(file: DataFile, stream: Any) -> None:
    size = stream.seek(0, io.SEEK_END)
    stream.seek(0)
    if size < file.size:
        raise shrunk(file.name, size, file.size)


def _failed(file: DataFile, place: str, error: Exception) -> DataError:
    # pyarrow raises a plain OSError for content that it cannot parse.
    if isinstance(error, pa.ArrowException) or type(error) is OSError:
        return corrupt(file.name, place, str(error).splitlines()[0])
    return unreadable(file.name, place, error)


def _write(group: pa.Table, draft: Path) -> None:
    with pa.OSFile(str(draft), "wb") as target, pa.ipc.new_file(target, group.schema) as writer:
        writer.write_table(group)


def _mapped(path: Path | None) -> pa.Table | None:
    return None if path is None else pa.ipc.open_file(pa.memory_map(str(path))).read_all()
