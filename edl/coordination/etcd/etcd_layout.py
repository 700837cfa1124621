r"""The layout of a tree of nodes in etcd's flat keys, and the form of the values. Pure.

    <prefix>/nodes/<depth><path>   a node: "<version> <created>\n" and its value; `created` is 0 in what the put that
                                   made it has written
    <prefix>/children<path>        how many children it ever had, as a number to add to this key's own etcd version
    <prefix>/sessions/<lease>      a session that lives: it goes with its lease

With the depth in front, the children of a node are one range of keys, without their descendants. An ephemeral's
owner is the lease of its key. The count of children is in a key of its own so that creating a child is no change of the
parent; it is *added to the version*, which etcd counts, so that two clients may create children at once without a
comparison that one of them would lose.
"""

from __future__ import annotations

from dataclasses import dataclass

from edl.coordination.etcd.etcd_messages import KeyValue
from edl.coordination.store import StoredNode
from edl.errors import PeerError

DEFAULT_PREFIX = "/edl"
"""The prefix if etcd:// names no other; other programs may use the same etcd."""


@dataclass(frozen=True, slots=True)
class KeyLayout:
    """The keys below one prefix."""

    prefix: str

    def node(self, path: str) -> bytes:
        return f"{self.prefix}/nodes/{depth_of(path)}{path}".encode()

    def children(self, path: str) -> tuple[bytes, bytes]:
        """Return the range of keys of all children: the first possible key, and the first after all."""
        first = f"{self.prefix}/nodes/{depth_of(path) + 1}{path.rstrip('/')}/".encode()
        return first, first[:-1] + b"0"

    def count(self, path: str) -> bytes:
        return f"{self.prefix}/children{path}".encode()

    def session(self, session: int) -> bytes:
        return f"{self.prefix}/sessions/{session:x}".encode()

    def all(self) -> tuple[bytes, bytes]:
        """Return the range of all of these keys, as a role has to be granted."""
        return f"{self.prefix}/".encode(), f"{self.prefix}0".encode()


def depth_of(path: str) -> int:
    return 0 if path == "/" else path.count("/")


def name_in(key: bytes) -> str:
    """Return the last part of a node's key."""
    return key.rpartition(b"/")[2].decode()


def to_value(node: StoredNode) -> bytes:
    return b"%d %d\n" % (node.version, node.created) + node.value


def to_node(kv: KeyValue) -> StoredNode:
    head, newline, value = kv.value.partition(b"\n")
    version, _, created = head.partition(b" ")
    if not (newline and version.isdigit() and created.isdigit()):
        raise PeerError(
            f"{kv.key.decode(errors='replace')} in etcd was not written by edl: give edl a prefix of its own"
        )
    return StoredNode(value, int(version), int(created) or kv.mod_revision, kv.lease)


def children_created(count: KeyValue | None) -> int:
    return 0 if count is None else int(count.value) + count.version


def count_value(children: int, before: KeyValue | None) -> bytes:
    """Return the value for the next put of the count, after which `children_created` returns `children`."""
    return b"%d" % (children - (1 if before is None else before.version + 1))
