"""The storage that checkpoints need: a tree of folders with files, on a disk or in an object store."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from edl.errors import CheckpointError

Chunks = Callable[[], Iterable[bytes]]  # each call begins the whole content again


class AlreadyThere(CheckpointError):
    """The file exists already, and stays as it is."""


class NotThere(CheckpointError):
    """The file or folder does not exist."""


class NotAFile(CheckpointError):
    """The name belongs to a link, a folder or a device, which edl has not written."""


class StoredBytes(Protocol):
    """An existing file, open for reading."""

    @property
    def size(self) -> int: ...

    def read(self, begin: int, size: int) -> bytes:
        """Return `size` bytes from `begin` on, or fewer where the file ends. Raises CheckpointError."""

    def close(self) -> None: ...


class Files(Protocol):
    """The files under a folder or prefix. A folder is a path below it, with `/` in between; '' is the root itself.

    Any thread may call. Each method raises CheckpointError, with one line, if the storage cannot be reached or refuses.
    """

    @property
    def where(self) -> str:
        """The root as people write it: a path or a URL."""

    def names(self, folder: str) -> list[str]:
        """Return the sorted names in a folder; nothing if there is no such folder."""

    def open(self, folder: str, name: str) -> StoredBytes:
        """Open a file for reading. Raises NotThere, NotAFile."""

    def write(self, folder: str, name: str, chunks: Chunks) -> None:
        """Write a file, and make its folder if needed. On return the file is whole and durable; after an error it is
        whole or absent. Never replaces a file: raises AlreadyThere.
        """

    def create(self, folder: str, name: str, content: bytes) -> None:
        """Write a file that several writers may create at once: one of them succeeds, all others get AlreadyThere."""

    def flush(self, folder: str) -> None:
        """Make the names in a folder durable."""

    def remove(self, folder: str, name: str) -> None:
        """Remove a file durably; it need not exist."""

    def remove_folder(self, folder: str) -> bool:
        """Remove a folder unless it holds anything. Return True if it is gone."""
