"""Checkpoints in an object store that fsspec supports: `s3://`, `gs://`, `abfs://` and others.

Owns: retries, and the replacement for exclusive creation. Does not own: credentials, which each store's own library
finds.

An object appears when all of it has been sent, so it needs no temporary name. `create` asks the store for exclusive
creation, and then reads the object back: some stores, and older libraries, silently replace an existing object. In
these the later of two writers at the same instant wins. Both would publish the same checkpoint, because the number in
the folder's name is given out once, by a write that only the present leader can make.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, TypeVar

from edl.checkpoints.checkpoint_storage import AlreadyThere, Chunks, NotThere, StoredBytes
from edl.errors import CheckpointError, ConfigError

PAUSES_S = (0.1, 0.4, 1.6, 4.0)  # between tries; libraries of stores try again by themselves, too
AHEAD_BYTES = 32 << 20
# Stores without folders: to make a folder there would create a bucket of a mistyped name.
BUCKETS = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az"}
FINAL = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)

Result = TypeVar("Result")


class ObjectFiles:
    """An implementation of `edl.checkpoints.checkpoint_storage.Files`."""

    def __init__(self, url: str, wait: Callable[[float], None] = time.sleep) -> None:
        """Open the store at `url`. Raises ConfigError if fsspec knows no such store, or the store's
        library is missing.
        """
        import fsspec  # heavy: only for jobs whose checkpoints lie in such a store

        self._url = url.rstrip("/")
        self._wait = wait
        try:
            found = fsspec.core.url_to_fs(url, skip_instance_cache=True, use_listings_cache=False)
        except (ValueError, ImportError) as error:
            raise ConfigError(
                f"{url}: {error}; name a folder, or a URL that fsspec knows, such as s3://bucket/folder"
            ) from error
        self._fs: Any = found[0]
        self._prefix: str = found[1].rstrip("/")
        known = self._fs.protocol
        self._protocols = {known} if isinstance(known, str) else set(known)
        if "s3" in self._protocols:
            self._fs.retries = 1  # else s3fs tries five times, between the retries of botocore and those of edl

    @property
    def where(self) -> str:
        return self._url

    def names(self, folder: str) -> list[str]:
        path = self._path(folder)
        try:
            found: list[str] = self._patiently("list", path, lambda: self._fs.ls(path, detail=False))
        except NotThere:
            return []
        return sorted({one.rstrip("/").rpartition("/")[2] for one in found} - {""})

    def open(self, folder: str, name: str) -> StoredBytes:
        path = self._path(folder, name)
        info: dict[str, Any] = self._patiently("read", path, lambda: self._fs.info(path))
        if info.get("type") != "file" or not isinstance(info.get("size"), int):
            raise NotThere(f"there is no file {path}")
        return _ObjectBytes(self, path, info["size"])

    def write(self, folder: str, name: str, chunks: Chunks) -> None:
        path = self._path(folder, name)
        if self._is_there(path):
            raise AlreadyThere(f"{path} is there already")
        self._patiently("write", path, lambda: self._send(folder, path, chunks))

    def create(self, folder: str, name: str, content: bytes) -> None:
        path = self._path(folder, name)
        self._patiently("write", path, lambda: self._create(folder, path, content))

    def flush(self, folder: str) -> None:
        """Do nothing: an object is durable once it exists."""

    def remove(self, folder: str, name: str) -> None:
        path = self._path(folder, name)
        with contextlib.suppress(NotThere):
            self._patiently("remove", path, lambda: self._fs.rm_file(path))

    def remove_folder(self, folder: str) -> bool:
        if self.names(folder):
            return False
        with contextlib.suppress(Exception):  # most stores have no folders
            self._fs.rmdir(self._path(folder))
        return True

    def range(self, path: str, begin: int, end: int) -> bytes:
        found: bytes = self._patiently("read", path, lambda: self._fs.cat_file(path, start=begin, end=end))
        return found

    def _path(self, folder: str, name: str = "") -> str:
        return "/".join(filter(None, (self._prefix, folder, name))) or "/"

    def _is_there(self, path: str) -> bool:
        try:
            self._patiently("read", path, lambda: self._fs.info(path))
        except NotThere:
            return False
        return True

    def _send(self, folder: str, path: str, chunks: Chunks) -> None:
        self._make(folder)
        size = 0
        stream = self._fs.open(path, "wb")
        try:
            for chunk in chunks():
                stream.write(chunk)
                size += len(chunk)
        except BaseException:
            _abandon(stream)
            raise
        stream.close()  # sends the rest; with it the object is there
        there = self._fs.info(path)["size"]
        if there != size:
            raise OSError(f"{there} of {size} bytes have come there")

    def _make(self, folder: str) -> None:
        if BUCKETS.isdisjoint(self._protocols):
            self._fs.makedirs(self._path(folder), exist_ok=True)

    def _create(self, folder: str, path: str, content: bytes) -> None:
        """Create the object unless it exists with other content. A retry may find the object that its own last try has
        left.
        """
        self._make(folder)
        try:
            there = self._fs.cat_file(path)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):  # by another writer, or by a retry of the store's library
                self._fs.pipe_file(path, content, mode="create")
            there = self._fs.cat_file(path)
        if there != content:
            raise FileExistsError(path)

    def _patiently(self, doing: str, path: str, call: Callable[[], Result]) -> Result:
        """Make the call; retry if the store, or the network, has failed."""
        for pause_s in (*PAUSES_S, None):
            try:
                return call()
            except FileExistsError:
                raise AlreadyThere(f"{self._shown(path)} is there already") from None
            except FileNotFoundError:
                if doing == "write":  # so stores refuse an object whose bucket does not exist
                    told = "there is no place for it; make its bucket, or look at that store"
                    raise CheckpointError(f"cannot write {self._shown(path)}: {told}") from None
                raise NotThere(f"there is no {self._shown(path)}") from None
            except CheckpointError:
                raise
            except Exception as error:  # whatever the store's library raises
                if pause_s is None or isinstance(error, FINAL):
                    told = (str(error).splitlines() or [""])[0] or type(error).__name__
                    raise CheckpointError(f"cannot {doing} {self._shown(path)}: {told}; look at that store") from error
                self._wait(pause_s)
        raise AssertionError("the last try has no pause after it")

    def _shown(self, path: str) -> str:
        return str(self._fs.unstrip_protocol(path))


class _ObjectBytes:
    """An implementation of `edl.checkpoints.checkpoint_storage.StoredBytes` that reads ahead, because a request takes
    longer than the transfer of a small content.
    """

    def __init__(self, files: ObjectFiles, path: str, size: int) -> None:
        self._files = files
        self._path = path
        self.size = size
        self._begin = 0
        self._ahead = b""  # the content that begins at `_begin`

    def read(self, begin: int, size: int) -> bytes:
        end = min(begin + size, self.size)
        if begin >= end:
            return b""
        if not self._begin <= begin < end <= self._begin + len(self._ahead):
            until = min(max(end, begin + AHEAD_BYTES), self.size)
            self._begin, self._ahead = begin, self._files.range(self._path, begin, until)
        return self._ahead[begin - self._begin : end - self._begin]

    def close(self) -> None:
        self._ahead = b""


def _abandon(stream: Any) -> None:
    """Discard an unfinished upload, so that nothing completes it, not even the destruction of `stream`."""
    with contextlib.suppress(Exception):
        stream.discard()
    with contextlib.suppress(Exception):
        stream.closed = True
