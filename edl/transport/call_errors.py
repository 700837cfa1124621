"""The port by which a leader listens and a daemon calls, and the failures of a call.

gRPC implements the port, and a twin in memory for simulation. All failures are PeerError: the caller may ask again, or
ask another leader. Owns: the port, the failures of a call, the reasons of a refusal, and the counts of refusals by
reason. Does not own: the reaction to them (`edl.daemon`).
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from types import UnionType
from typing import Any, Protocol, TypeVar, overload

import msgspec

from edl.errors import PeerError


class Reason(StrEnum):
    """The reason of a refusal (I10)."""

    UNAUTHENTIC = "unauthentic"  # not sealed with this job's secret, or changed on its way
    VERSION = "version"  # another version of the envelope
    MALFORMED = "malformed"  # well sealed, but not decodable: the peer runs another build
    JOB = "job"  # a message of another job
    RECIPIENT = "recipient"  # a message to another daemon, or to another run of the job
    REPLAYED = "replayed"  # this very message was received before
    TERM = "term"  # of a term that is over, or not yet known here
    GENERATION = "generation"  # of a roster that is not in force
    RING = "ring"  # about a ring of another sort than the one that is formed here
    UNKNOWN_MESSAGE = "unknown_message"
    UNKNOWN_METHOD = "unknown_method"  # a gRPC method that no job of ours has
    OVERSIZED = "oversized"
    OVERLOADED = "overloaded"  # too many calls at once
    FAILED = "failed"  # the handler raised: a bug on the other side, which its log describes


class Unreachable(PeerError):
    """The address has no server, or the peer went away during the call, which may have been carried out."""


class DeadlineExceeded(PeerError):
    """The answer did not come in time. The call may have been carried out."""


class Unauthentic(PeerError):
    """The peer does not share the job's secret, or the bytes were changed in transit."""


class Refused(PeerError):
    """The peer understood the message, and refuses it. `term` is the peer's own, 0 if the peer tells none."""

    def __init__(self, reason: Reason, term: int = 0, detail: str = "") -> None:
        super().__init__(f"refused: {reason.value}" + (f" ({detail})" if detail else ""))
        self.reason = reason
        self.term = term
        self.detail = detail


class PipeClosed(PeerError):
    """The other end of the private socket is gone, or does not read any more."""


class Refusals:
    """Count refusals by reason (I10): a misbehaving peer must not be able to fill a log.

    A counter of the process, shared by all parts that refuse messages. Belongs to the event loop's thread.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def count(self, reason: StrEnum, of: str = "") -> None:
        """`of`: a server other than the transport's, which has reasons of its own."""
        self._counts[f"{of}_{reason.value}" if of else reason.value] += 1

    def snapshot(self) -> dict[str, int]:
        """Leave out reasons that never occurred."""
        return dict(self._counts)


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
