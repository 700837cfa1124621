"""The store port: a small tree of nodes with versions, sessions, watches and fenced transactions.

Owns: the vocabulary (nodes, operations, the state of the link, errors) and the guarantees of every implementation;
`tests/contract` checks them on each. Which implementation goes with which address is here, too; only the one in use
is imported. Does not own: any implementation (`zookeeper`, `memory_store`), nor what the nodes mean (`edl.protocol`,
`election`).

A store belongs to one event loop. Every method is called on it, and every callback is delivered on it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

import msgspec

from edl.coordination.coordinator_settings import EMBEDDED, ETCD, ZOOKEEPER, Coordinator
from edl.errors import ConfigError, EdlError, UsageError

ANY: Final = -1
"""The version that stands for any version."""

MAX_VALUE_BYTES: Final = 1_000_000
"""Bound for a value, and for all values of a transaction together. ZooKeeper drops the connection at 1 048 576 bytes
of request, which would look like an outage, and a retry would never end."""

MAX_OPS: Final = 40
"""Bound for the operations of a transaction. An etcd accepts 128 comparisons by default, of which one
operation may need three; two are the fence's and the session's."""


@dataclass(frozen=True, slots=True)
class StoredNode:
    value: bytes
    version: int  # grows by one with each write
    created: int  # grows with every node created later, in the whole store
    owner: int  # session id of an ephemeral's owner; 0: the node outlives sessions


class Link(Enum):
    """State of the connection."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"  # no server answers; the session may or may not be alive: trust nothing it guaranteed
    LOST = "lost"  # the session is over and its ephemerals are gone, or will be; a new session follows by itself


class Create(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Create a node; its parent must exist."""

    path: str
    value: bytes = b""
    ephemeral: bool = False
    sequence: bool = False


class Write(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Replace a value, if the node has the version."""

    path: str
    value: bytes
    version: int = ANY


class Delete(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Delete a childless node, if it has the version."""

    path: str
    version: int = ANY


class Check(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Change nothing, but fail the transaction unless the node exists and has the version."""

    path: str
    version: int = ANY


Op = Create | Write | Delete | Check


class StoreRefused(EdlError):
    """The store refused the operation; nothing was changed. `op` is the refused operation of a transaction."""

    because = "refused"

    def __init__(self, path: str, op: Op | None = None) -> None:
        super().__init__(f"{path}: {self.because}")
        self.path = path
        self.op = op


class NodeExists(StoreRefused):
    """The node to create exists already."""

    because = "the node exists already"


class NoNode(StoreRefused):
    """The node, or the parent of a node to create, does not exist."""

    because = "no such node"


class VersionConflict(StoreRefused):
    """The version has changed, as another client wrote first: read again."""

    because = "the node has another version"


class NotEmpty(StoreRefused):
    """The node to delete has children."""

    because = "the node has children"


class AccessDenied(ConfigError):
    """The credentials in use give no access to this node."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"the coordinator refuses access to {path}: set EDL_COORDINATOR_AUTH=user:password to the credentials "
            "that the job was started with"
        )
        self.path = path


class Watch(Protocol):
    """A watch, which lasts until it is closed."""

    def close(self) -> None:
        """Close the watch; no wake follows. It may be closed twice."""


class Store(Protocol):
    """A session with the coordinator, and the calls in it.

    Every call ends within a time-out of about the session's, counted from the call, or from the coordinator's last
    answer to an earlier call. All of them may raise:

    - `StoreUnavailable`: disconnected, closed, or no answer in time. A **read** may simply be retried. A **write**
      may have been carried out nevertheless, or may be carried out later: read before a retry. For a sequence node that
      means to put a name of one's own into the prefix and to look for it, as the election does; for a fenced commit it
      means that a repetition is refused once the term is over, but may take effect twice before.
    - `AccessDenied`: the credentials give no access to the node.
    - `UsageError`: a malformed path, a value over `MAX_VALUE_BYTES`, a child of an ephemeral node, or a call in a
      forked child process (in which a session cannot be used: connect there anew).
    """

    async def read(self, path: str) -> StoredNode | None:
        """Return the node, or None if it does not exist."""

    async def children(self, path: str) -> tuple[str, ...]:
        """Return the sorted names of the children; () also if the node does not exist."""

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequence: bool = False, parents: bool = True
    ) -> str:
        """Create a node and return its path; with `sequence`, ten digits that grow with every child of the parent are
        appended.

        With `parents`, missing parents are created as empty nodes, which stay even if the call then fails. Raises
        `NodeExists`; `NoNode` without `parents`.
        """

    async def write(self, path: str, value: bytes, version: int = ANY) -> int:
        """Replace the value if the node has the version; return the new version. Raises `NoNode`, `VersionConflict`."""

    async def delete(self, path: str, version: int = ANY) -> None:
        """Delete the node if it has the version. Raises `NoNode`, `VersionConflict`, `NotEmpty`."""

    async def commit(self, ops: Sequence[Op], *, fence: str | None = None) -> tuple[str | int | None, ...]:
        """Carry out all operations, at most `MAX_OPS`, or none. Return a result for each: path of a `Create`, version
        of a `Write`, else None.

        Raises `Fenced` if the node `fence` is gone, whatever else would have failed; else the error that the first
        failing operation would raise on its own, with that operation in `.op`. A failed `Check` is `NoNode` or
        `VersionConflict`.
        """

    def watch(self, path: str, wake: Callable[[], None]) -> Watch:
        """Call `wake` whenever the node or the list of its children may have changed, and after each reconnect.

        A wake means "read again": several changes may cause only one, and a wake may come without a change. A caller
        that first watches and then reads misses no change. The node need not exist. `wake` is never called from within
        `watch`.
        """

    def watch_link(self, wake: Callable[[Link], None]) -> Watch:
        """Call `wake` with each new state of the connection, before any later call can succeed on it."""

    @property
    def link(self) -> Link:
        """The connection's state: as last passed to `watch_link`, or a worse state that is about to be passed."""

    @property
    def session(self) -> int:
        """The id of the current session, the `owner` of its ephemerals; while not connected, the id of the last one."""

    async def close(self) -> None:
        """End the session, so that its ephemerals are deleted at once. It raises nothing, ends within a bound, and may
        be called twice.
        """


def check_path(path: str) -> None:
    """Refuse paths that ZooKeeper would refuse, and different spellings of one node. Raises UsageError."""
    if path == "/":
        return
    if not path.startswith("/") or any(part in {"", ".", ".."} for part in path.split("/")[1:]) or "\0" in path:
        raise UsageError(f"not a path of the store: {path!r} (like /a/b, without an empty, '.' or '..' part)")


def check_size(path: str, payload_bytes: int) -> None:
    """Refuse a value so large that ZooKeeper would drop the connection instead of refusing it. Raises UsageError."""
    if payload_bytes > MAX_VALUE_BYTES:
        raise UsageError(f"{payload_bytes} bytes for {path} are more than a node may hold ({MAX_VALUE_BYTES})")


def check_ops(ops: Sequence[Op]) -> None:
    """Apply `check_path` and `check_size` to a transaction, and check its length. Raises UsageError."""
    if len(ops) > MAX_OPS:
        raise UsageError(f"{len(ops)} operations from {ops[0].path} on are more than one transaction takes ({MAX_OPS})")
    for op in ops:
        check_path(op.path)
    payload_bytes = sum(len(op.value) for op in ops if isinstance(op, Create | Write))
    check_size(ops[0].path if ops else "/", payload_bytes)


def parent_of(path: str) -> str:
    """Return the parent's path; the parent of / is / itself."""
    return path.rpartition("/")[0] or "/"


MODULES: Final = {
    ZOOKEEPER: "edl.coordination.zookeeper",
    ETCD: "edl.coordination.etcd.etcd_store",
    EMBEDDED: "edl.coordination.embedded.embedded_store",
}


async def connect(settings: Coordinator, session_timeout_s: float, *, connect_timeout_s: float = 10.0) -> Store:
    """Open a store with a new session. Raises `ConfigError`, `AccessDenied` and others as the implementations do."""
    implementation = importlib.import_module(MODULES[settings.kind])
    store: Store = await implementation.connect(settings, session_timeout_s, connect_timeout_s=connect_timeout_s)
    return store
