"""The messages between the embedded coordinator and its clients, over a private pipe (`edl.transport.pipe`).

A client sends `BeginSession` first, or only `EndSession`. Its questions are carried out and answered in order. The
server reports a change before it answers any question that was asked after the change.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from edl.coordination.store import Op, StoredNode

LONGEST_SESSION_S = 86_400.0

TimeoutS = Annotated[float, msgspec.Meta(gt=0, le=LONGEST_SESSION_S)]


class _WireMessage(msgspec.Struct, frozen=True, tag=True, array_like=True):
    pass


# ------------------------------------------------------------------------------------------------ what clients say


class BeginSession(_WireMessage, frozen=True):
    """Resume this session; if it is over, or 0, begin another."""

    session: int
    timeout_s: TimeoutS


class EndSession(_WireMessage, frozen=True):
    """End the session; the server then closes the connection."""

    session: int


class SignOfLife(_WireMessage, frozen=True):
    """Keep the session alive, as any message does."""

    number: int


class ReadNode(_WireMessage, frozen=True):
    number: int
    path: str


class ListChildren(_WireMessage, frozen=True):
    number: int
    path: str


class CommitOps(_WireMessage, frozen=True):
    number: int
    ops: tuple[Op, ...]
    fence: str | None = None
    parents: bool = False


class WatchPath(_WireMessage, frozen=True):
    """Report changes of this node, or of the list of its children, from now on."""

    path: str


class UnwatchPath(_WireMessage, frozen=True):
    path: str


InSession = SignOfLife | ReadNode | ListChildren | CommitOps | WatchPath | UnwatchPath
Asked = BeginSession | EndSession | InSession


# ------------------------------------------------------------------------------------------------ what servers say


class SessionGiven(_WireMessage, frozen=True):
    """The session that this connection has from now on."""

    session: int


class OpsDone(_WireMessage, frozen=True):
    number: int
    results: tuple[str | int | None, ...] = ()


class NodeFound(_WireMessage, frozen=True):
    number: int
    node: StoredNode | None


class ChildrenListed(_WireMessage, frozen=True):
    number: int
    names: tuple[str, ...]


class OpsRefused(_WireMessage, frozen=True):
    """The refusal of a change: nothing was changed. `why` is the name of the port's error; `op` is the index of the
    refused operation, or -1.
    """

    number: int
    why: str
    path: str = ""
    op: int = -1


class NodeChanged(_WireMessage, frozen=True):
    path: str


Answer = OpsDone | NodeFound | ChildrenListed | OpsRefused
Told = SessionGiven | Answer | NodeChanged
