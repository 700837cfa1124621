"""What the embedded coordinator and its clients say to each other over a private pipe (`edl.transport.pipe`).

A client begins with `Begin`, or says `End` and no more. Its questions are carried out in their order, and answered in
it. What a server would have to say of a change comes before the answer to any question that was asked after it.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from edl.coordination.store import Op, StoredNode

LONGEST_SESSION_S = 86_400.0

TimeoutS = Annotated[float, msgspec.Meta(gt=0, le=LONGEST_SESSION_S)]


class _Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    pass


# ------------------------------------------------------------------------------------------------ what clients say


class Begin(_Message):
    """Take up this session, or where it is over (0: there was none) begin another."""

    session: int
    timeout_s: TimeoutS


class End(_Message):
    """End the session; the server hangs up when that is done."""

    session: int


class Beat(_Message):
    """A sign of life, as any message is."""

    number: int


class Read(_Message):
    number: int
    path: str


class Children(_Message):
    number: int
    path: str


class Commit(_Message):
    number: int
    ops: tuple[Op, ...]
    fence: str | None = None
    parents: bool = False


class WatchPath(_Message):
    """Tell of changes of this node, or of the list of its children, from now on."""

    path: str


class UnwatchPath(_Message):
    path: str


Asked = Begin | End | Beat | Read | Children | Commit | WatchPath | UnwatchPath


# ------------------------------------------------------------------------------------------------ what servers say


class Began(_Message):
    """The session that this connection has from now on."""

    session: int


class Done(_Message):
    number: int
    results: tuple[str | int | None, ...] = ()


class Found(_Message):
    number: int
    node: StoredNode | None


class Names(_Message):
    number: int
    names: tuple[str, ...]


class Refused(_Message):
    """Nothing was changed. `why`: the name of the port's error; `op`: which operation is the culprit, -1: none is."""

    number: int
    why: str
    path: str = ""
    op: int = -1


class Changed(_Message):
    path: str


Answer = Done | Found | Names | Refused
Told = Began | Answer | Changed
