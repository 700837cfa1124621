"""The journal of the embedded coordinator: what it has acknowledged, on disk, so that it may be killed at any time.

Owns: the form of the file, reading it back, and its bound. Does not own: what records mean (`store_state`).

The file is a snapshot of the state and the records accepted since, each in a frame: its length, the CRC of what it
holds, a CRC of these two, and msgpack. A process that is killed as it writes leaves a prefix of a frame. So a frame
that ends too early is the last write, of which no client was told, and is dropped; any other fault is damage, and
nothing that follows it may be believed. A file that has grown to twice its snapshot and more gives way to a new one by
a rename. Nothing is forced to the disk itself (no fsync): the file survives the process, not a power cut.
"""

from __future__ import annotations

import logging
import os
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from edl.coordination.store import StoredNode
from edl.coordination.store_state import OpsCommitted, Record, SessionEnded, SessionOpened, StoreState
from edl.coordination.tree import Entry
from edl.errors import ConfigError, EdlError

logger = logging.getLogger("edl")

MAGIC: Final = b"edl journal 1\n"
SLACK_BYTES: Final = 8 << 20
"""A journal may always grow by so much beyond its snapshot: small ones are not written anew all the time."""

_HEAD = struct.Struct(">II")  # length and CRC of the content
_CHECK = struct.Struct(">I")  # CRC of the head
_HEAD_BYTES: Final = _HEAD.size + _CHECK.size


class StateSnapshot(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A state as it was; so many `KeptNode` follow."""

    stamp: int
    sessions: dict[int, float]
    nodes: int


class KeptNode(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A node of a snapshot."""

    path: str
    node: StoredNode
    children: int
    created_children: int


_FRAMES: msgspec.msgpack.Decoder[StateSnapshot | KeptNode | Record] = msgspec.msgpack.Decoder(
    StateSnapshot | KeptNode | SessionOpened | SessionEnded | OpsCommitted
)


class JournalDamaged(ConfigError):
    """Somewhere before the end of a journal there is what no server has written."""

    def __init__(self, at: int) -> None:
        super().__init__(f"it is damaged at byte {at}")
        self.at = at


# ------------------------------------------------------------------------------------------------- the form, pure


def framed(record: Any) -> bytes:
    content = msgspec.msgpack.encode(record)
    head = _HEAD.pack(len(content), zlib.crc32(content))
    return head + _CHECK.pack(zlib.crc32(head)) + content


def written(state: StoreState) -> Iterator[bytes]:
    """A journal that begins with this state, piece by piece."""
    yield MAGIC
    yield framed(StateSnapshot(state.stamp, state.sessions, len(state.tree)))
    for path, entry in state.tree.items():
        yield framed(KeptNode(path, entry.node, entry.children, entry.created_children))


def read_back(journal: bytes, state: StoreState) -> tuple[int, int]:
    """Bring an empty state to where the journal ends: how many of its bytes are good, and of them how many are its
    snapshot. Raises `JournalDamaged`.
    """
    if not journal.startswith(MAGIC):
        raise JournalDamaged(0)
    frames = _frames(journal, len(MAGIC))
    base = _restored(frames, state)
    end = base
    for at, record, record_end in frames:
        if isinstance(record, StateSnapshot | KeptNode):
            raise JournalDamaged(at)
        try:
            state.accept(state.prepare(record))
        except EdlError:  # what was refused is not written down
            raise JournalDamaged(at) from None
        end = record_end
    return end, base


def _restored(frames: Iterator[tuple[int, Any, int]], state: StoreState) -> int:
    """Take the snapshot off the front; where it ends."""
    at, first, end = next(frames, (len(MAGIC), None, 0))
    if not isinstance(first, StateSnapshot):
        raise JournalDamaged(at)
    tree: dict[str, Entry] = {}
    while len(tree) < first.nodes:
        at, one, end = next(frames, (end, None, 0))
        if not isinstance(one, KeptNode):  # a snapshot is whole before the file has its name
            raise JournalDamaged(at)
        tree[one.path] = Entry(one.node, one.children, one.created_children)
    state.restore(tree, first.sessions, first.stamp)
    return end


def _frames(journal: bytes, at: int) -> Iterator[tuple[int, Any, int]]:
    """Yield where each whole frame begins, what it holds, and where it ends."""
    while len(journal) - at >= _HEAD_BYTES:
        head = journal[at : at + _HEAD.size]
        length, crc = _HEAD.unpack(head)
        begin = at + _HEAD_BYTES
        if zlib.crc32(head) != _CHECK.unpack_from(journal, at + _HEAD.size)[0]:
            raise JournalDamaged(at)
        content = journal[begin : begin + length]
        if len(content) < length:
            return
        if zlib.crc32(content) != crc:
            raise JournalDamaged(at)
        try:
            yield at, _FRAMES.decode(content), begin + length
        except msgspec.MsgspecError:
            raise JournalDamaged(at) from None
        at = begin + length


# ------------------------------------------------------------------------------------------------------- the file


class Journal:
    """The file, which one process at a time has open."""

    def __init__(self, path: Path, state: StoreState) -> None:
        """Read it back into an empty state, or begin one. Raises `ConfigError` with one line, `OSError`."""
        self._path = path
        self._draft = path.with_name(f"{path.name}.new")
        self._draft.unlink(missing_ok=True)
        self._file = -1
        if path.exists():
            self._read(state)
        else:
            self.compact(state)

    @property
    def full(self) -> bool:
        """Tell whether it is time to compact the journal."""
        return self._end - self._base > max(SLACK_BYTES, self._base)

    @property
    def removed(self) -> bool:
        """Tell whether its name is gone, so that what is written would not outlive this process."""
        try:
            return self._path.stat().st_ino != os.fstat(self._file).st_ino
        except OSError:
            return True

    def append(self, record: Record) -> None:
        """Keep it. Raises OSError, and then it is as before."""
        frame = rest = framed(record)
        try:
            while rest:  # of a part, the next try says why it was no more
                rest = rest[os.write(self._file, rest) :]
        except OSError:
            try:
                os.ftruncate(self._file, self._end)
            except OSError as error:  # what follows half a frame could not be read back: begin again, without it
                sys.exit(f"the journal {self._path} can be written no more: {error}")
            raise
        self._end += len(frame)

    def compact(self, state: StoreState) -> None:
        """Begin anew with this state. Raises OSError, and then it is as before, and full again after as much more."""
        try:
            with self._draft.open("wb") as draft:
                self._draft.chmod(0o600)
                draft.writelines(written(state))
                end = draft.tell()
            self._draft.rename(self._path)
        except OSError:
            self._draft.unlink(missing_ok=True)
            if self._file >= 0:
                self._base = self._end
            raise
        self._open(end, end)

    def _read(self, state: StoreState) -> None:
        journal = self._path.read_bytes()
        try:
            end, base = read_back(journal, state)
        except JournalDamaged as error:
            raise ConfigError(
                f"{self._path} is no journal of this edl, or damaged at byte {error.at} of {len(journal)}: what the "
                "job kept there is lost; stop the job and run it again, from its last checkpoint if it has one"
            ) from None
        if end < len(journal):
            torn_bytes = len(journal) - end
            logger.warning("%s: its last write had not ended; %d bytes of it are dropped", self._path, torn_bytes)
            os.truncate(self._path, end)
        self._open(end, base)

    def _open(self, end: int, base: int) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self._end, self._base = end, base
