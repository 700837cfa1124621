"""The state of a server of edl's own as the sum of its records: sessions, and a tree of nodes by ZooKeeper's rules.

It is pure. Owns: what each operation does and when it is refused, the records, what each of them changes, and how much
the nodes may hold. Does not own: when a session ends (`memory_store`, `embedded.embedded_core`), where records are kept
(`embedded.journal`), nor watches.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

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
from edl.errors import Fenced, PeerError, UsageError


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


Results = tuple[str | int | None, ...]


class SessionOpened(msgspec.Struct, frozen=True, tag=True, array_like=True):
    session: int
    timeout_s: float


class SessionEnded(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A session is over, and its ephemeral nodes are gone."""

    session: int


class OpsCommitted(msgspec.Struct, frozen=True, tag=True, array_like=True):
    session: int
    ops: tuple[Op, ...]


Record = SessionOpened | SessionEnded | OpsCommitted


class StoreFull(PeerError):
    """The nodes hold as many bytes as they may: nothing was changed."""


@dataclass(frozen=True, slots=True)
class PreparedRecord:
    """A record and its changes, which may be accepted as long as no other record was accepted since."""

    record: Record
    changes: dict[str, Entry | None]
    results: Results = ()


class StoreState:
    """The sum of all accepted records."""

    def __init__(self, limit_bytes: float = math.inf) -> None:
        """`limit_bytes` bounds the names and values of all nodes together."""
        self.tree: dict[str, Entry] = {"/": ROOT}
        self.sessions: dict[int, float] = {}  # by session, its time-out in seconds
        self.stamp = 0  # number of the newest change
        self._names: defaultdict[str, set[str]] = defaultdict(set)  # names of children, by the parent's path
        self._limit_bytes = limit_bytes
        self._size_bytes = _size("/", ROOT)

    def children(self, path: str) -> tuple[str, ...]:
        """Return the sorted names of the children; () also if the node does not exist."""
        return tuple(sorted(self._names.get(path, ())))

    def prepare(self, record: Record) -> PreparedRecord:
        """Compute the changes of a record without making them. Raises `StoreRefused`, `UsageError`, `StoreFull`."""
        attempt = Attempt(self.tree, self.stamp + 1, record.session)
        match record:
            case SessionOpened():
                return PreparedRecord(record, {})
            case SessionEnded():
                attempt.drop_session()
                return PreparedRecord(record, attempt.changes)
            case OpsCommitted():
                results = tuple(attempt.apply(op) for op in record.ops)
                self._check_room(attempt.changes, record.ops)
                return PreparedRecord(record, attempt.changes, results)

    def prepare_commit(
        self, session: int, ops: Sequence[Op], *, fence: str | None = None, parents: bool = False
    ) -> PreparedRecord:
        """Prepare a transaction as `prepare` does. Raises `Fenced`, too. `parents` adds the missing parents of a single
        creation, whose result is returned alone.
        """
        if fence is not None and fence not in self.tree:
            raise Fenced(f"the reign is over: {fence} is gone")
        missing: list[Op] = []
        above = parent_of(ops[0].path) if parents else "/"
        while above not in self.tree:
            missing.insert(0, Create(above))
            above = parent_of(above)
        prepared = self.prepare(OpsCommitted(session, (*missing, *ops)))
        return PreparedRecord(prepared.record, prepared.changes, prepared.results[len(missing) :])

    def accept(self, prepared: PreparedRecord) -> None:
        self._size_bytes += self._growth(prepared.changes)
        self.stamp += 1
        for path, entry in prepared.changes.items():
            if entry is None:
                if self.tree.pop(path, None) is not None:
                    self._unname(path)
            else:
                if path not in self.tree:
                    self._names[parent_of(path)].add(_name(path))
                self.tree[path] = entry
        match prepared.record:
            case SessionOpened(session, timeout_s):
                self.sessions[session] = timeout_s
            case SessionEnded(session):
                self.sessions.pop(session, None)
            case OpsCommitted():
                pass

    def restore(self, tree: dict[str, Entry], sessions: dict[int, float], stamp: int) -> None:
        self.tree, self.sessions, self.stamp = tree, sessions, stamp
        self._names.clear()
        for path in tree.keys() - {"/"}:
            self._names[parent_of(path)].add(_name(path))
        self._size_bytes = sum(_size(path, entry) for path, entry in tree.items())

    def _unname(self, path: str) -> None:
        names = self._names[parent_of(path)]
        names.discard(_name(path))
        if not names:
            del self._names[parent_of(path)]

    def _check_room(self, changes: dict[str, Entry | None], ops: Sequence[Op]) -> None:
        growth = self._growth(changes)
        if growth > 0 and self._size_bytes + growth > self._limit_bytes:
            raise StoreFull(
                f"the coordinator refuses to write {ops[0].path}: its nodes hold {self._size_bytes} bytes, of "
                f"{self._limit_bytes:.0f} at most; name a ZooKeeper or an etcd by --coordinator"
            )

    def _growth(self, changes: dict[str, Entry | None]) -> int:
        return sum(_size(path, entry) - _size(path, self.tree.get(path)) for path, entry in changes.items())


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _size(path: str, entry: Entry | None) -> int:
    return 0 if entry is None else len(path) + len(entry.node.value)
