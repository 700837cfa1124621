"""The port by which a leader listens and a daemon calls. gRPC implements it, and a twin in memory for simulation."""

from __future__ import annotations

from types import UnionType
from typing import Any, Protocol, TypeVar, overload

import msgspec

R = TypeVar("R")


class Listener(Protocol):
    """The leader's side."""

    term: int

    async def start(self, host: str) -> int:
        """Listen on this address only; return the port."""

    async def stop(self) -> None:
        """Take no more calls, let those in flight end for a moment, then cut them. Harmless twice."""


class Caller(Protocol):
    """The daemon's side, for one address."""

    def connect(self) -> None:
        """Begin to connect, so that the first call takes no longer than others. Harmless twice."""

    @overload
    async def call(self, body: msgspec.Struct, reply_type: type[R], *, term: int, deadline_s: float) -> R: ...
    @overload
    async def call(self, body: msgspec.Struct, reply_type: UnionType, *, term: int, deadline_s: float) -> Any: ...
    async def call(self, body: msgspec.Struct, reply_type: Any, *, term: int, deadline_s: float) -> Any:
        """Return the reply. Raises Unreachable, DeadlineExceeded, Refused, Unauthentic; all within `deadline_s`."""

    async def close(self) -> None:
        """End calls in flight with Unreachable. Harmless twice."""
