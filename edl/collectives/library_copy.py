"""A private copy of a native library: the loader takes it for another library, with its own variables and threads.

Owns: what such a copy has, and where it lies. Does not own: loading it (`edl.collectives.horovod_libraries`).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

_HEAD = struct.Struct("<4sBB10xHHIQQQIHHHHHH")  # of an ELF file of 64 bits
_PART = struct.Struct("<IIQQQQQQ")
_IS_LOADED = 1


def private_copy(path: str, change: Callable[[bytes], bytes] = lambda contents: contents) -> str:
    """Return the path of a copy in memory, which lasts as long as this process. Raises OSError, and as `change` does.

    The copy must be another file, as the loader recognizes hard links. It stays open, as the loader also knows
    libraries by their paths: a reused descriptor number would name another library.
    """
    contents = change(_loaded_part(Path(path)))
    descriptor = os.memfd_create(f"edl-{Path(path).name}")
    os.truncate(descriptor, len(contents))
    with os.fdopen(descriptor, "wb", closefd=False) as copy:
        copy.write(contents)
    return f"/proc/self/fd/{descriptor}"


def _loaded_part(path: Path) -> bytes:
    # Nearly all of Horovod's 60 MB is debugging data, which lies behind the segments that are loaded.
    with path.open("rb") as file:
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size or head[:6] != b"\x7fELF\x02\x01":
            raise OSError(f"{path} is no library of 64 bits")
        first, number = (_HEAD.unpack(head)[index] for index in (7, 12))
        file.seek(first)
        parts = list(_PART.iter_unpack(file.read(number * _PART.size)))
        end = max(part[2] + part[5] for part in parts if part[0] == _IS_LOADED)
        file.seek(0)
        return file.read(end)
