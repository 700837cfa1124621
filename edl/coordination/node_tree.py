"""A tree of nodes as a value, and transactions on it: ZooKeeper's rules without ZooKeeper.

Owns: what each operation does and when it is refused. Does not own: sessions (`store_state`), nor watches (`memory`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from edl.coordination.store import (
    ANY,
    Check,
    Create,
    Delete,
    NodeExists,
    NoNode,
    NotEmpty,
    Op,
    StoredNode,
    VersionConflict,
    Write,
    parent_of,
)
from edl.errors import UsageError


@dataclass(frozen=True, slots=True)
class Entry:
    """A node and the tree's counts of its children."""

    node: StoredNode
    children: int = 0  # number of children
    created_children: int = 0  # the next sequence number


ROOT = Entry(StoredNode(b"", version=0, created=0, owner=0))


class Attempt:
    """A transaction that collects changes and leaves the tree as it is; discard it if an operation fails."""

    def __init__(self, tree: Mapping[str, Entry], stamp: int, session: int) -> None:
        self.changes: dict[str, Entry | None] = {}  # nodes whose value or list of children changed; None: deleted
        self._tree = tree
        self._stamp = stamp
        self._session = session

    def apply(self, op: Op) -> str | int | None:
        match op:
            case Create():
                return self._create(op)
            case Write():
                entry = self._existing(op)
                node = replace(entry.node, value=op.value, version=entry.node.version + 1)
                self._put(op.path, replace(entry, node=node))
                return node.version
            case Delete():
                self._delete(op)
                return None
            case Check():
                self._existing(op)
                return None

    def _create(self, op: Create) -> str:
        above = parent_of(op.path)
        parent = self._get(above)
        if parent is None:
            raise NoNode(op.path, op)
        if parent.node.owner:
            raise UsageError(f"{above} is ephemeral and can have no children")
        path = f"{op.path}{parent.created_children:010d}" if op.sequence else op.path
        if self._get(path) is not None:
            raise NodeExists(path, op)
        owner = self._session if op.ephemeral else 0
        self._put(path, Entry(StoredNode(op.value, version=0, created=self._stamp, owner=owner)))
        children, created = parent.children + 1, parent.created_children + 1
        self._put(above, replace(parent, children=children, created_children=created))
        return path

    def _delete(self, op: Delete) -> None:
        if op.path == "/":
            raise UsageError("the root of the store cannot be deleted")
        if self._existing(op).children:
            raise NotEmpty(op.path, op)
        self._drop(op.path)

    def drop_session(self) -> None:
        """Delete all nodes of the session, as a transaction of its own."""
        for path, entry in self._tree.items():
            if entry.node.owner == self._session:
                self._drop(path)

    def _drop(self, path: str) -> None:
        above = parent_of(path)
        parent = self._get(above)
        assert parent is not None  # a node is dropped before its parent
        self.changes[path] = None
        self._put(above, replace(parent, children=parent.children - 1))

    def _existing(self, op: Write | Delete | Check) -> Entry:
        entry = self._get(op.path)
        if entry is None:
            raise NoNode(op.path, op)
        if op.version not in {ANY, entry.node.version}:
            raise VersionConflict(op.path, op)
        return entry

    def _get(self, path: str) -> Entry | None:
        return self.changes[path] if path in self.changes else self._tree.get(path)

    def _put(self, path: str, entry: Entry) -> None:
        self.changes[path] = entry
