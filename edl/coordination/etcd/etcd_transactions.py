r"""Plan of a transaction of the port in etcd, and the layout of a tree of nodes in its flat keys. Pure.

Owns: from nodes that were read at one revision, the changes to make, and the comparisons under which they are still
right; a refusal is raised from the nodes that were read. Does not own: the effect of operations on a tree
(`store_state`, which the in-memory store uses too), nor asking etcd (`etcd_store`), which plans again when a comparison
fails.

etcd compares and changes keys, but knows no tree, and lets a transaction touch no key twice. So the operations are
carried out on a copy of the few nodes that they touch, and only the difference is written.

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

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from edl.coordination.etcd.etcd_messages import (
    CREATE,
    GREATER,
    MOD,
    Compare,
    DeleteRangeRequest,
    KeyValue,
    PutRequest,
    RequestOp,
    TxnRequest,
)
from edl.coordination.store import Create, Delete, Op, StoredNode, parent_of
from edl.coordination.store_state import Attempt, Entry
from edl.errors import Fenced, PeerError

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


@dataclass(frozen=True, slots=True)
class Seen:
    """A path as it was read."""

    node: KeyValue | None
    count: KeyValue | None = None
    children: frozenset[str] = frozenset()  # only if `touched` asks for them


Snapshot = Mapping[str, Seen]
"""Paths and their nodes, all read at one revision."""


@dataclass(frozen=True, slots=True)
class EtcdPlan:
    """A transaction for etcd, and the results for the port's caller if it succeeds."""

    request: TxnRequest
    results: tuple[str | int | None, ...]
    numbered: frozenset[str]  # paths that were not read: read them too if the transaction fails


def touched(ops: Sequence[Op], fence: str | None = None) -> dict[str, bool]:
    """Return the paths to read, each with True if its children are needed too."""
    paths: dict[str, bool] = {} if fence is None else {fence: False}
    for op in ops:
        paths.setdefault(op.path, False)
        if isinstance(op, Create | Delete):
            paths.setdefault(parent_of(op.path), False)
        if isinstance(op, Delete):
            paths[op.path] = True
    return paths


def with_parents(create: Op, snapshot: Snapshot) -> list[Op]:
    """Return the creation, preceded by the creation of missing parents."""
    ops: list[Op] = [create]
    above = parent_of(create.path)
    while above in snapshot and snapshot[above].node is None and above != "/":
        ops.insert(0, Create(above))
        above = parent_of(above)
    return ops


def ancestors(path: str) -> Iterator[str]:
    while path != "/":
        path = parent_of(path)
        yield path


def plan(layout: KeyLayout, snapshot: Snapshot, ops: Sequence[Op], fence: str | None, session: int) -> EtcdPlan:
    """Raises the port's error if the transaction is refused."""
    if fence is not None and snapshot[fence].node is None:
        raise Fenced(f"the reign is over: {fence} is gone")
    base = {path: _entry(seen) for path, seen in snapshot.items() if seen.node is not None}
    attempt = Attempt(base, 0, session)
    results = [attempt.apply(op) for op in ops]
    return EtcdPlan(
        TxnRequest(
            (
                Compare(GREATER, CREATE, layout.session(session)),
                *_comparisons(layout, snapshot, ops, fence, attempt),
            ),
            tuple(_changes(layout, snapshot, base, attempt)),
        ),
        tuple(results),
        frozenset(attempt.changes.keys() - snapshot.keys()),
    )


def _entry(seen: Seen) -> Entry:
    assert seen.node is not None
    return Entry(to_node(seen.node), len(seen.children), children_created(seen.count))


def _comparisons(
    layout: KeyLayout, snapshot: Snapshot, ops: Sequence[Op], fence: str | None, attempt: Attempt
) -> Iterator[Compare]:
    """Yield comparisons that all nodes and counts, on which the operations depend, are as they were read."""
    numbered = {parent_of(op.path) for op in ops if isinstance(op, Create) and op.sequence}
    emptied = {op.path for op in ops if isinstance(op, Delete)}
    parents = {parent_of(op.path) for op in ops if isinstance(op, Create)}
    named = {op.path for op in ops if not (isinstance(op, Create) and op.sequence)}
    made = {path for path in attempt.changes if path not in snapshot}
    for path in sorted(named | parents | made | ({fence} if fence is not None else set())):
        yield _as_it_was(layout.node(path), _seen(snapshot, path).node)
    for path in sorted(_counted(snapshot, attempt, numbered | emptied)):
        yield _as_it_was(layout.count(path), _seen(snapshot, path).count)


def _counted(snapshot: Snapshot, attempt: Attempt, depended_on: Iterable[str]) -> set[str]:
    """Return paths whose count of children must be as it was read. A count that only grows by one may also grow by
    other writers.
    """
    paths = set(depended_on)
    for path in attempt.changes:
        after, seen = attempt.changes[path], _seen(snapshot, path)
        if (
            after is not None
            and not _grows_by_one(seen, after)
            and after.created_children != children_created(seen.count)
        ):
            paths.add(path)
    return paths


def _changes(layout: KeyLayout, snapshot: Snapshot, base: Mapping[str, Entry], attempt: Attempt) -> Iterator[RequestOp]:
    for path in sorted(attempt.changes):
        seen, before, after = _seen(snapshot, path), base.get(path), attempt.changes[path]
        if after is None:
            yield from _removal(layout, path, seen)
            continue
        if before is None or after.node != before.node:
            put = PutRequest(layout.node(path), to_value(after.node), after.node.owner)
            yield RequestOp(request_put=put)
        if _grows_by_one(seen, after):
            yield RequestOp(request_put=PutRequest(layout.count(path), ignore_value=True))
        elif after.created_children != children_created(seen.count):
            value = count_value(after.created_children, seen.count)
            yield RequestOp(request_put=PutRequest(layout.count(path), value))


def _removal(layout: KeyLayout, path: str, seen: Seen) -> Iterator[RequestOp]:
    if seen.node is not None:
        yield RequestOp(request_delete_range=DeleteRangeRequest(layout.node(path)))
    if seen.count is not None:
        yield RequestOp(request_delete_range=DeleteRangeRequest(layout.count(path)))


def _grows_by_one(seen: Seen, after: Entry) -> bool:
    """Tell whether the count grows by one, as each put of it does, whatever other writers put meanwhile."""
    return seen.count is not None and after.created_children == children_created(seen.count) + 1


def _seen(snapshot: Snapshot, path: str) -> Seen:
    return snapshot.get(path) or Seen(None)


def _as_it_was(key: bytes, kv: KeyValue | None) -> Compare:
    """Compare a key's revision with the one that was read; a missing key has revision 0."""
    return Compare(target=MOD, key=key, mod_revision=0 if kv is None else kv.mod_revision)
