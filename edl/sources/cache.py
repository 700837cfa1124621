"""A cache of facts about files for all workers of this host: tables of places, unpacked files.

Owns: a folder that may be deleted at any time. One process makes an entry while the others wait for it, with a bound;
where nothing can be kept (a home on a full or read-only disk) each makes its own. Does not own: the content of entries.

An entry's key names its content (file, size, time of change), so no entry is ever out of date. An entry that no process
has used for `UNUSED_S` is deleted when a new one is added.

Files packed by gzip are unpacked once per host, because nothing inside them can be reached by its offset:
docs/decisions/files.md says why there is no index into the packed file instead.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import logging
import os
import secrets
import shutil
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import numpy as np

from edl.file_lock import open_lock, take
from edl.sources.file_errors import corrupt, fault, unreadable
from edl.sources.formats import PACKED
from edl.sources.listing import DataFile
from edl.sources.record_places import Table

logger = logging.getLogger("edl")

VERSION = "1"  # version of the entries' form; entries of other versions are ignored
UNUSED_S = 30 * 24 * 3600.0


class Cache:
    """A cache whose entries are files that only this user can read."""

    def __init__(self, folder: Path, patience_s: float) -> None:
        self.folder = folder
        self._patience_s = patience_s

    def table(self, key: str, usable: Callable[[Table], bool], make: Callable[[], Table]) -> Table:
        """Return the table called `key`, mapped from the cache, or made and kept there."""
        path = self._path(key, ".npy")
        kept = _loaded(path, usable)
        if kept is not None:
            return kept
        with self._turn(path) as mine:
            kept = _loaded(path, usable)  # the process that had the turn before may have made it
            if kept is None:
                kept = make()
                if mine:
                    self._keep(path, lambda draft: _write_table(draft, kept))
        return kept

    def file(self, key: str, make: Callable[[Path], None]) -> Path:
        """Return the file called `key`, written by `make` if it is missing. Raises OSError when it cannot be kept."""
        path = self._path(key, ".data")
        with self._turn(path):
            if not _touched(path):
                _replace(path, make)
        return path

    def found(self, key: str) -> Path | None:
        path = self._path(key, ".data")
        return path if _touched(path) else None

    def offer(self, key: str, make: Callable[[Path], None]) -> None:
        """Keep a file that `make` writes under the name `key`, if it can be kept."""
        self._keep(self._path(key, ".data"), make)

    def free_bytes(self) -> int:
        """Return the disk's free space; 0 if nothing can be kept."""
        try:
            self._make_folder()
            return shutil.disk_usage(self.folder).free
        except OSError:
            return 0

    def _make_folder(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _path(self, key: str, suffix: str) -> Path:
        return self.folder / (hashlib.sha256(f"{VERSION}\n{key}".encode()).hexdigest()[:32] + suffix)

    @contextlib.contextmanager
    def _turn(self, path: Path) -> Iterator[bool]:
        """Hold the entry's lock. Yield False if the lock was not obtained in time, or nothing can be kept."""
        lock = self._open_lock(path.with_suffix(".lock"))
        try:
            yield lock is not None and self._locked(lock)
        finally:
            if lock is not None:
                os.close(lock)  # this releases the lock, as the death of the process would

    def _open_lock(self, path: Path) -> int | None:
        try:
            self._make_folder()
            return open_lock(path)
        except OSError as error:
            logger.warning("cannot keep what is found out about files in %s: %s", self.folder, error.strerror)
            return None

    def _locked(self, lock: int) -> bool:
        try:
            mine = take(lock, self._patience_s)
        except OSError:  # a file system without locks
            return False
        if not mine:
            logger.warning("another process has counted records for %g s: doing it here too", self._patience_s)
        return mine

    def _keep(self, path: Path, write: Callable[[Path], None]) -> None:
        try:
            _replace(path, write)
            self._forget_unused()
        except OSError as error:
            logger.warning("cannot keep what was found out about files in %s: %s", self.folder, error.strerror)

    def _forget_unused(self) -> None:
        oldest = time.time() - UNUSED_S
        for path in self.folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another process was faster
                if path.stat().st_mtime < oldest:
                    path.unlink()


def _replace(path: Path, write: Callable[[Path], None]) -> None:
    """Write the file whole, or not at all."""
    draft = path.with_suffix(f".{secrets.token_hex(4)}")
    try:
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        write(draft)
        draft.rename(path)
    finally:
        draft.unlink(missing_ok=True)


def _touched(path: Path) -> bool:
    """Tell whether the file exists, and mark it as used now."""
    try:
        os.utime(path)
    except OSError:
        return False
    return True


def _write_table(draft: Path, table: Table) -> None:
    with draft.open("wb") as stream:
        np.save(stream, table)


def _loaded(path: Path, usable: Callable[[Table], bool]) -> Table | None:
    if not _touched(path):
        return None
    try:
        table = np.asarray(np.load(path, mmap_mode="r"))  # without the costs of a memmap object
    except (OSError, ValueError, EOFError) as error:
        logger.warning("%s is of no use (%s): counting records again", path, error)
        return None
    return table if usable(table) else None


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
