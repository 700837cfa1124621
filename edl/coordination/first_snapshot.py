"""The first snapshot of a local ZooKeeper: a tree that is closed to strangers before the server first listens.

Owns: ZooKeeper's file format of a snapshot, as far as an empty tree needs it, and whether a folder holds any data. Does
not own: the user whom the tree is open to, nor the server that loads it (`zookeeper_server`).

A ZooKeeper that finds no data makes a tree that every client may change, `/zookeeper` included, and serves it. Closing
that tree afterwards would leave a gap that any client of the machine can use. The format is the same in ZooKeeper 3.4
to 3.9: additions of later versions come after it, and may be missing.
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

from kazoo.security import OPEN_ACL_UNSAFE, READ_ACL_UNSAFE, make_digest_acl

from edl.coordination.coordinator_settings import Digest

_VERSION = "version-2"  # ZooKeeper's name for the folder of its data
_HEADER = struct.pack(">4siq", b"ZKSN", 2, -1)
_NO_SESSIONS = struct.pack(">i", 0)
RESERVED = ("/zookeeper", "/zookeeper/config", "/zookeeper/quota")
_END = struct.pack(">i", 1) + b"/"  # ends the list of nodes, and each whole snapshot
_ROOT_ID, _RESERVED_ID = 1, 2
_STAT = bytes(8 * 4 + 4 * 3 + 8 * 2)  # the stat of a node that was never changed


@dataclass(frozen=True, slots=True)
class Rights:
    """An entry of an ACL."""

    permissions: int
    scheme: str
    identity: str


def rights_of(digest: Digest | None) -> tuple[Rights, Rights]:
    """Return the access rights of the root, and of ZooKeeper's own nodes, which no part of edl uses."""
    if digest is None:
        made = OPEN_ACL_UNSAFE[0], READ_ACL_UNSAFE[0]
    else:
        made = (make_digest_acl(digest.user, digest.password, all=True),) * 2
    root, reserved = (Rights(acl.perms, acl.id.scheme, acl.id.id) for acl in made)
    return root, reserved


def snapshot_of(root: Rights, reserved: Rights) -> bytes:
    """Make the file's content: the root and ZooKeeper's own nodes, without data."""
    acls = struct.pack(">i", 2) + _acl(_ROOT_ID, root) + _acl(_RESERVED_ID, reserved)
    nodes = _node("", _ROOT_ID) + b"".join(_node(path, _RESERVED_ID) for path in RESERVED)
    content = _HEADER + _NO_SESSIONS + acls + nodes + _END
    return content + struct.pack(">q", zlib.adler32(content)) + _END


def put_first(data: Path, content: bytes) -> None:
    """Write this snapshot into `data`, whole and flushed to disk, unless there is a tree already."""
    folder = data / _VERSION
    if holds_data(data):
        return
    folder.mkdir(mode=0o700, exist_ok=True)
    working = folder / "first.new"
    with working.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    working.rename(folder / "snapshot.0")


def holds_data(data: Path) -> bool:
    """Tell whether a ZooKeeper would load a tree from there, or refuse to start, instead of making an open tree.

    ZooKeeper passes over a truncated snapshot, and refuses to start if it finds only a log of changes.
    """
    folder = data / _VERSION
    return any(map(_is_whole, folder.glob("snapshot.*"))) or any(folder.glob("log.*"))


def _is_whole(snapshot: Path) -> bool:
    with snapshot.open("rb") as file:
        file.seek(-min(len(_END), snapshot.stat().st_size), os.SEEK_END)
        return file.read() == _END


def _acl(number: int, rights: Rights) -> bytes:
    return struct.pack(">qii", number, 1, rights.permissions) + _text(rights.scheme) + _text(rights.identity)


def _node(path: str, acl: int) -> bytes:
    return _text(path) + _text("") + struct.pack(">q", acl) + _STAT


def _text(words: str) -> bytes:
    encoded = words.encode()
    return struct.pack(">i", len(encoded)) + encoded
