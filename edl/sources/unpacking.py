"""Files packed by gzip are unpacked once per host, because nothing inside them can be reached by its offset.

docs/decisions/files.md says why there is no index into the packed file instead.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

import fsspec

from edl.sources.cache import Cache
from edl.sources.file_errors import corrupt, fault, unreadable
from edl.sources.formats import PACKED
from edl.sources.listing import DataFile

CHUNK = 1 << 20


def unpacked(file: DataFile, cache: Cache) -> DataFile:
    """Return `file`, or its unpacked copy if it is packed. Raises DataError."""
    if not file.name.endswith(PACKED):
        return file
    try:
        path = cache.file(f"gz\n{file.name}\n{file.size}\n{file.version}", lambda draft: _unpack(file, draft))
        size = path.stat().st_size
    except OSError as error:
        what = f"cannot be unpacked into {cache.folder}: {error.strerror}; EDL_HOME names another folder"
        raise fault(file.name, what) from error
    return DataFile(fsspec.filesystem("file"), str(path), f"{file.name} (unpacked)", size, file.version, True)


def _unpack(file: DataFile, draft: Path) -> None:
    with draft.open("wb") as target:
        for chunk in _chunks(file):
            target.write(chunk)


def _chunks(file: DataFile) -> Iterator[bytes]:
    done = 0
    try:
        with file.fs.open(file.path, "rb") as packed, gzip.open(packed, "rb") as stream:
            while chunk := stream.read(CHUNK):
                done += len(chunk)
                yield chunk
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise corrupt(file.name, f"byte {done} of what is packed in it", f"no gzip: {error}") from None
    except Exception as error:  # whatever the file system's library raises
        raise unreadable(file.name, f"byte {done} of what is packed in it", error) from error
