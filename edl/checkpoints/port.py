"""What checkpoints need of the place where they lie: a tree of folders with files, on a disk or in an object store."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from edl.errors import CheckpointError

Chunks = Callable[[], Iterable[bytes]]  # the whole content, as often as it is asked for


class AlreadyThere(CheckpointError):
    """A file of that name is there, and stays as it is."""


class NotThere(CheckpointError):
    """There is no such file or folder."""


class NotAFile(CheckpointError):
    """What is called so is a link, a folder or a device: nothing that edl wrote."""


class StoredBytes(Protocol):
    """A file that is there, open for reading."""

    @property
    def size(self) -> int: ...

    def read(self, begin: int, size: int) -> bytes:
        """As many bytes, or fewer where the file ends. Raises CheckpointError."""

    def close(self) -> None: ...


class Files(Protocol):
    """All under one folder or prefix. A folder is a path below it, with `/` in between; '' is that folder itself.

    Any thread may call. Each method raises CheckpointError where the place cannot be reached or refuses, with one line.
    """

    @property
    def where(self) -> str:
        """As people name it: a path or a URL."""

    def names(self, folder: str) -> list[str]:
        """What is in it, sorted; nothing where there is no such folder."""

    def open(self, folder: str, name: str) -> StoredBytes:
        """Raises NotThere, NotAFile."""

    def write(self, folder: str, name: str, chunks: Chunks) -> None:
        """When it returns the file is whole and durable; when it raises, no whole file is there, or a whole one.

        Makes the folder where there is none. Never replaces a file: raises AlreadyThere.
        """

    def create(self, folder: str, name: str, content: bytes) -> None:
        """The same, for what several writers may try at once: one of them succeeds, all others get AlreadyThere."""

    def flush(self, folder: str) -> None:
        """What is called something in it now is called so for good."""

    def remove(self, folder: str, name: str) -> None:
        """Durably; it may be gone already."""

    def remove_folder(self, folder: str) -> bool:
        """Whether it is gone: one that holds anything stays."""
