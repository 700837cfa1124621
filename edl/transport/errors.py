"""How a call to a peer can fail. All are PeerError: the caller may ask again, or ask another leader.

Owns: the failures of a call and the reasons of a refusal. Does not own: what to do about them (`edl.daemon`).
"""

from __future__ import annotations

from enum import StrEnum

from edl.errors import PeerError


class Reason(StrEnum):
    """Why a message was refused (I10)."""

    UNAUTHENTIC = "unauthentic"  # not sealed with this job's secret, or changed on its way
    VERSION = "version"  # another version of the envelope
    MALFORMED = "malformed"  # well sealed, and not readable all the same: the peer runs another build
    JOB = "job"  # a message of another job
    RECIPIENT = "recipient"  # a message to another daemon, or to another run of the job
    REPLAYED = "replayed"  # this very message was here before
    TERM = "term"  # of a reign that is over, or not yet known here
    GENERATION = "generation"  # of a roster that is not in force
    RING = "ring"  # about a ring of another sort than the one that is formed here
    UNKNOWN_MESSAGE = "unknown_message"
    UNKNOWN_METHOD = "unknown_method"  # a gRPC method that no job of ours has
    OVERSIZED = "oversized"
    OVERLOADED = "overloaded"  # too many calls at once
    FAILED = "failed"  # the handler raised: a bug on the other side, told in its log


class Unreachable(PeerError):
    """No server answers at that address, or the peer went away during the call. It may have been carried out."""


class DeadlineExceeded(PeerError):
    """No answer in time. The call may have been carried out."""


class Unauthentic(PeerError):
    """The peer does not share the job's secret, or the bytes were changed between us."""


class Refused(PeerError):
    """The peer understood and does not take the message. `term` is the peer's own, 0 where it tells none."""

    def __init__(self, reason: Reason, term: int = 0, detail: str = "") -> None:
        super().__init__(f"refused: {reason.value}" + (f" ({detail})" if detail else ""))
        self.reason = reason
        self.term = term
        self.detail = detail


class PipeClosed(PeerError):
    """The other end of the private socket is gone, or does not read any more."""
