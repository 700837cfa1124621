"""The journal of the embedded coordinator: all acknowledged changes, on disk, so that the process may be killed at any
time.

Owns: the form of the file, reading it back, and its bound. Does not own: what records mean (`store_state`).

The file is a snapshot of the state and the records accepted since, each in a frame: length, CRC of the content, a CRC
of these two, and the content in msgpack. A process that is killed while it writes leaves a prefix of a frame. So a
frame that ends too early, and has no whole frame behind its head, is the last write, which no client saw acknowledged,
and is dropped; any other fault is damage, and the rest of the file cannot be trusted. A file that has grown to more
than twice its snapshot is replaced by a new one by a rename. Nothing is forced to the disk itself (no fsync): the file
survives the process, not a power cut.
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
from edl.coordination.store_state import Entry, OpsCommitted, Record, SessionEnded, SessionOpened, StoreState
from edl.errors import ConfigError, EdlError

logger = logging.getLogger("edl")

MAGIC: Final = b"edl journal 1\n"
SLACK_BYTES: Final = 8 << 20
"""A journal may always grow by this much beyond its snapshot, so that small journals are not rewritten all the time."""

_HEAD = struct.Struct(">II")  # length and CRC of the content
_CHECK = struct.Struct(">I")  # CRC of the head
_HEAD_BYTES: Final = _HEAD.size + _CHECK.size


class StateSnapshot(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The head of a snapshot; `nodes` frames of `KeptNode` follow it."""

    stamp: int
    sessions: dict[int, float]
    nodes: int


class KeptNode(msgspec.Struct, frozen=True, tag=True, array_like=True):
    path: str
    node: StoredNode
    children: int
    created_children: int


_FRAMES: msgspec.msgpack.Decoder[StateSnapshot | KeptNode | Record] = msgspec.msgpack.Decoder(
    StateSnapshot | KeptNode | SessionOpened | SessionEnded | OpsCommitted
)


class JournalDamaged(ConfigError):
    """The journal has bytes before its end that no server has written."""

    def __init__(self, at: int) -> None:
        super().__init__(f"it is damaged at byte {at}")
        self.at = at


# ------------------------------------------------------------------------------------------------- the form, pure


def framed(record: Any) -> bytes:
    content = msgspec.msgpack.encode(record)
    head = _HEAD.pack(len(content), zlib.crc32(content))
    return head + _CHECK.pack(zlib.crc32(head)) + content


def written(state: StoreState) -> Iterator[bytes]:
    """Yield a journal that begins with this state, piece by piece."""
    yield MAGIC
    yield framed(StateSnapshot(state.stamp, state.sessions, len(state.tree)))
    for path, entry in state.tree.items():
        yield framed(KeptNode(path, entry.node, entry.children, entry.created_children))


def read_back(journal: bytes, state: StoreState) -> tuple[int, int]:
    """Restore an empty state from the journal; return the number of good bytes, and the size of the snapshot among
    them.

    Raises `JournalDamaged`.
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
        except EdlError:  # a refused record is never written
            raise JournalDamaged(at) from None
        end = record_end
    return end, base


def _restored(frames: Iterator[tuple[int, Any, int]], state: StoreState) -> int:
    """Restore the snapshot at the front; return where it ends."""
    at, first, end = next(frames, (len(MAGIC), None, 0))
    if not isinstance(first, StateSnapshot):
        raise JournalDamaged(at)
    tree: dict[str, Entry] = {}
    while len(tree) < first.nodes:
        at, one, end = next(frames, (end, None, 0))
        if not isinstance(one, KeptNode):  # the file got its name only when the snapshot was whole
            raise JournalDamaged(at)
        tree[one.path] = Entry(one.node, one.children, one.created_children)
    state.restore(tree, first.sessions, first.stamp)
    return end


def _frames(journal: bytes, at: int) -> Iterator[tuple[int, Any, int]]:
    """Yield each whole frame: where it begins, its content, and where it ends."""
    while len(journal) - at >= _HEAD_BYTES:
        head = journal[at : at + _HEAD.size]
        length, crc = _HEAD.unpack(head)
        begin = at + _HEAD_BYTES
        if zlib.crc32(head) != _CHECK.unpack_from(journal, at + _HEAD.size)[0]:
            raise JournalDamaged(at)
        content = journal[begin : begin + length]
        if len(content) < length:
            if _holds_frame(journal, begin):  # so it is no last write
                raise JournalDamaged(at)
            return
        if zlib.crc32(content) != crc:
            raise JournalDamaged(at)
        try:
            yield at, _FRAMES.decode(content), begin + length
        except msgspec.MsgspecError:
            raise JournalDamaged(at) from None
        at = begin + length


def _holds_frame(journal: bytes, at: int) -> bool:
    """Tell whether a whole frame begins at any place from `at` on."""
    while (at := journal.find(b"\0", at)) >= 0 and at + _HEAD_BYTES <= len(journal):  # no frame has 16 MiB
        head, begin = journal[at : at + _HEAD.size], at + _HEAD_BYTES
        if zlib.crc32(head) == _CHECK.unpack_from(journal, at + _HEAD.size)[0]:
            length, crc = _HEAD.unpack(head)
            content = journal[begin : begin + length]
            if len(content) == length and zlib.crc32(content) == crc:
                return True
        at += 1
    return False


# ------------------------------------------------------------------------------------------------------- the file


class Journal:
    """The file, which only one process at a time has open."""

    def __init__(self, path: Path, state: StoreState) -> None:
        """Read the journal back into an empty state, or begin one. Raises `ConfigError` with one line, `OSError`."""
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
        """Tell whether the file was removed or replaced, so that further records would not outlive this process."""
        try:
            return self._path.stat().st_ino != os.fstat(self._file).st_ino
        except OSError:
            return True

    def append(self, record: Record) -> None:
        """After an OSError the journal is as before."""
        frame = rest = framed(record)
        try:
            while rest:  # after a short write, the next try raises the reason
                rest = rest[os.write(self._file, rest) :]
        except OSError:
            try:
                os.ftruncate(self._file, self._end)
            except OSError as error:  # records after half a frame could not be read back: end, and start without it
                sys.exit(f"the journal {self._path} can be written no more: {error}")
            raise
        self._end += len(frame)

    def compact(self, state: StoreState) -> None:
        """Begin a new file with this state. After an OSError the journal is as before, and `full` again after as many
        more bytes.
        """
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
