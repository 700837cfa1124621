"""Checkpoints in folders of this machine, or of a file system that all machines share.

Owns: the order of system calls by which a file is whole and durable or absent, and private to its user. Does not own:
the content of a file.

A file is written under a temporary name and flushed; then it gets its own name, if that is free; then the folder is
flushed. Below the root no symbolic link is followed, and only plain files are opened.

`put` does the same for a file that is no checkpoint of edl's: the script chooses its name, and may write it again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from edl.checkpoints.checkpoint_names import draft_of
from edl.checkpoints.checkpoint_storage import AlreadyThere, Chunks, NotAFile, NotThere, StoredBytes
from edl.errors import CheckpointError

HAS_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EINVAL}  # on some file systems
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
REMEDIES = {
    errno.ENOSPC: "make room there, or keep fewer checkpoints",
    errno.EDQUOT: "make room there, or keep fewer checkpoints",
    errno.EACCES: "let this user write there, or name another folder",
    errno.EPERM: "let this user write there, or name another folder",
    errno.EROFS: "name a folder that can be written",
    errno.ESTALE: "look at that file system",
    errno.EIO: "look at that disk",
}


class LocalFiles:
    """An implementation of `edl.checkpoints.checkpoint_storage.Files`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def where(self) -> str:
        return str(self._root)

    def names(self, folder: str) -> list[str]:
        try:
            with self._told("read", folder), self._opened(folder) as place:
                return sorted(os.listdir(place))  # noqa: PTH208 - by its descriptor
        except NotThere:
            return []

    def open(self, folder: str, name: str) -> StoredBytes:
        with self._told("read", folder, name), self._opened(folder) as place:
            # O_NONBLOCK: opening a pipe would wait for its other end.
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=place)
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode):
                os.close(file)
                raise NotAFile(f"{self._path(folder, name)} is not a plain file")
            return _LocalBytes(file, found.st_size, self._path(folder, name))

    def write(self, folder: str, name: str, chunks: Chunks) -> None:
        with self._told("write", folder, name):
            self._make(folder)
            with self._opened(folder) as place:
                _add(place, name, chunks)

    def create(self, folder: str, name: str, content: bytes) -> None:
        self.write(folder, name, lambda: (content,))

    def flush(self, folder: str) -> None:
        with self._told("write", folder), self._opened(folder) as place:
            os.fsync(place)

    def remove(self, folder: str, name: str) -> None:
        with contextlib.suppress(NotThere), self._told("remove", folder, name), self._opened(folder) as place:
            os.unlink(name, dir_fd=place)
            os.fsync(place)

    def remove_folder(self, folder: str) -> bool:
        parent, _, name = folder.rpartition("/")
        try:
            with self._told("remove", folder), self._opened(parent) as place:
                os.rmdir(name, dir_fd=place)
                os.fsync(place)
        except NotThere:
            return True
        except _NotEmpty:
            return False
        return True

    def _path(self, folder: str, name: str = "") -> str:
        return str(self._root / folder / name)

    @contextlib.contextmanager
    def _opened(self, folder: str) -> Iterator[int]:
        """Open the folder; its files are then reached by the descriptor, even if the folder is renamed."""
        place = os.open(self._root, FOLDER)
        try:
            for step in filter(None, folder.split("/")):
                inner = os.open(step, FOLDER | os.O_NOFOLLOW, dir_fd=place)
                os.close(place)
                place = inner
            yield place
        finally:
            os.close(place)

    def _make(self, folder: str) -> None:
        _make_root(self._root)
        place = os.open(self._root, FOLDER)
        try:
            for step in filter(None, folder.split("/")):
                with contextlib.suppress(FileExistsError):
                    os.mkdir(step, 0o700, dir_fd=place)
                os.fsync(place)  # another worker may just have made the folder, and not flushed it yet
                inner = os.open(step, FOLDER | os.O_NOFOLLOW, dir_fd=place)
                os.close(place)
                place = inner
        finally:
            os.close(place)

    @contextlib.contextmanager
    def _told(self, doing: str, folder: str, name: str = "") -> Iterator[None]:
        """Turn an error of the system into one line with a remedy."""
        path = self._path(folder, name)
        try:
            yield
        except FileExistsError:
            raise AlreadyThere(f"{path} is there already") from None
        except FileNotFoundError:
            raise NotThere(f"there is no {path}") from None
        except OSError as error:
            if error.errno == errno.ENOTEMPTY:
                raise _NotEmpty(f"{path} is not empty") from None
            if error.errno in {errno.ELOOP, errno.ENOTDIR}:  # for a link the system reports either
                raise NotAFile(f"{path}, or what is on the way to it, is a symbolic link or no folder") from None
            raise _told(doing, path, error) from error


def put(path: Path, content: bytes) -> None:
    """Write a script's own file, whole and durable, and replace an existing one. The process's umask says who may read
    it. Raises CheckpointError.
    """
    try:
        _make_root(path.parent, 0o777)
        place = os.open(path.parent, FOLDER)
        try:
            _add(place, path.name, lambda: (content,), mode=0o666, give_name=_replace)
        finally:
            os.close(place)
    except OSError as error:
        raise _told("write", str(path), error) from error


def _told(doing: str, path: str, error: OSError) -> CheckpointError:
    remedy = REMEDIES.get(error.errno or 0)
    return CheckpointError(f"cannot {doing} {path}: {error.strerror}{f'; {remedy}' if remedy else ''}")


class _NotEmpty(CheckpointError):
    """The folder is not empty."""


class _LocalBytes:
    """An implementation of `edl.checkpoints.checkpoint_storage.StoredBytes`."""

    def __init__(self, file: int, size: int, path: str) -> None:
        self._file = file
        self.size = size
        self._path = path

    def read(self, begin: int, size: int) -> bytes:
        try:
            return os.pread(self._file, size, begin)
        except OSError as error:
            raise CheckpointError(f"cannot read {self._path}: {error.strerror}; look at that disk") from error

    def close(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def __del__(self) -> None:
        self.close()


def _make_root(root: Path, mode: int = 0o700) -> None:
    """Make the folder, and the missing folders above it."""
    if root.is_dir():
        return
    _make_root(root.parent, mode)
    with contextlib.suppress(FileExistsError):
        root.mkdir(mode=mode)
    place = os.open(root.parent, FOLDER)
    try:
        os.fsync(place)
    finally:
        os.close(place)


def _name(place: int, draft: str, name: str) -> None:
    """Give the file its name if that is free. Raises FileExistsError."""
    try:
        os.link(draft, name, src_dir_fd=place, dst_dir_fd=place, follow_symlinks=False)
    except OSError as error:
        if error.errno not in HAS_NO_LINKS:
            raise
        # An empty file takes the name first; only the process that made it puts the whole one in its place.
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=place))
        os.rename(draft, name, src_dir_fd=place, dst_dir_fd=place)


def _replace(place: int, draft: str, name: str) -> None:
    os.rename(draft, name, src_dir_fd=place, dst_dir_fd=place)


def _add(
    place: int, name: str, chunks: Chunks, *, mode: int = 0o600, give_name: Callable[[int, str, str], None] = _name
) -> None:
    draft = draft_of(name, secrets.token_hex(4))
    try:
        file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=place)
        try:
            for chunk in chunks():
                _write_all(file, chunk)
            os.fsync(file)
        finally:
            os.close(file)
        give_name(place, draft, name)
        os.fsync(place)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(draft, dir_fd=place)


def _write_all(file: int, chunk: bytes) -> None:
    left = memoryview(chunk)
    while left:
        left = left[os.write(file, left) :]
