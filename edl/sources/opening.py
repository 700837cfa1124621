"""Opening of a source: from a script's description of its files to a list of files, their format and their records'
places.

Each worker opens the source for itself. Slow work is done once per host and kept in the cache.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Sequence

from edl.sources import record_places
from edl.sources.byte_records import Layout, RowSource, scan
from edl.sources.cache import Cache, unpacked
from edl.sources.formats import format_of
from edl.sources.listing import DataFile, list_files
from edl.sources.record_layouts import CsvRows, JsonLines, TextLines, TFRecords
from edl.sources.record_places import Table
from edl.sources.source_port import Source

logger = logging.getLogger("edl")

LAYOUTS: dict[str, Callable[[], Layout]] = {
    "text": TextLines,
    "csv": CsvRows,
    "jsonl": JsonLines,
    "tfrecord": TFRecords,
}
LITTLE_BYTES, LITTLE_FILES = 1 << 20, 16  # below these, counting is faster than a look into the cache
LARGE_BYTES = 2 << 30  # above this size, counting takes so long that a log line announces it

Path = str | os.PathLike[str]


def open_files(source: Path | Sequence[Path], given: str | None, cache: Cache) -> Source:
    """Return the records of all files that `source` names; `given` is their format. Raises UsageError, DataError."""
    entries = [source] if isinstance(source, str | os.PathLike) else source
    files = list_files(os.fspath(entry) for entry in entries)
    name = format_of((file.name for file in files), given)
    fingerprint = _fingerprint(name, files)
    if name == "parquet":
        from edl.sources import parquet  # needs an extra

        return parquet.ParquetSource(files, _table(name, files, cache, parquet.scan), fingerprint, cache)
    layout = LAYOUTS[name]()
    files = tuple(unpacked(file, cache) for file in files)
    table = _table(name, files, cache, lambda those: scan(those, layout))
    return RowSource(files, layout, table, fingerprint)


def _table(name: str, files: Sequence[DataFile], cache: Cache, count: Callable[[Sequence[DataFile]], Table]) -> Table:
    if sum(file.size for file in files) < LITTLE_BYTES and len(files) < LITTLE_FILES:
        return count(files)
    key = "\n".join([name, *(f"{file.name}\t{file.size}\t{file.version}" for file in files)])
    return cache.table(key, lambda table: record_places.is_table(table, len(files)), lambda: _counted(files, count))


def _counted(files: Sequence[DataFile], count: Callable[[Sequence[DataFile]], Table]) -> Table:
    size = sum(file.size for file in files)
    if size > LARGE_BYTES:
        logger.warning("counting the records of %d files (%.1f GB), once for this host", len(files), size / 1e9)
    return count(files)


def _fingerprint(name: str, files: Sequence[DataFile]) -> str:
    """Hash the sizes and the names, without their folders, which may differ between hosts."""
    told = "\n".join(f"{file.name.rpartition('/')[2]}\t{file.size}" for file in files)
    return f"{name}:{len(files)}:{hashlib.sha256(told.encode()).hexdigest()[:12]}"
