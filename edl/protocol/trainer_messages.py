"""The messages between a trainer and its own daemon over their private socket. Steps go through the shared page.

A trainer's status is one value, which the trainer sends whole when it has changed. The newest status counts, and a new
daemon is greeted with it.
"""

from __future__ import annotations

import msgspec

from edl.protocol.assignment import Orders
from edl.protocol.leader_messages import Reason, TrainerFacts


class CopiedPart(msgspec.Struct, frozen=True):
    """The newest saving whose part a trainer has copied, so that its daemon makes the copy durable; or of which it has
    no part, and never will.
    """

    number: int = 0
    files: tuple[str, ...] = ()  # names in the folder that trainer and daemon share
    stall_ms: float = 0.0  # for so long copying has delayed the script
    failure: Reason = ""  # why it has no part: the order came after that step, say, or copying failed


class TrainerStatus(TrainerFacts, frozen=True, kw_only=True, tag="status"):
    """The status of a trainer: the facts for its job, and what its daemon alone needs."""

    copied: CopiedPart = CopiedPart()
    figures: dict[str, float] = msgspec.field(default_factory=dict)  # of the script's own, the newest of each name
    heard_going: bool = False  # it knows that the job is preempted: no native code holds the interpreter


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """The first message to a daemon, which answers `Introduced`."""

    status: TrainerStatus = TrainerStatus()
    member: bool = False  # the trainer has had orders, from a daemon before this one
    limb: int = 0  # number of this process among those of its worker
    folder: str = ""  # in which its page lies; empty: in the daemon's own


FromTrainer = Hello | TrainerStatus


class Commanded(msgspec.Struct, frozen=True, tag="commanded"):
    """The leader's newest orders."""

    orders: Orders


class Introduced(msgspec.Struct, frozen=True, tag="introduced"):
    """The daemon's answer to Hello."""


class GaveUp(msgspec.Struct, frozen=True, tag="gave_up"):
    """The daemon cannot go on; the trainer ends with this reason."""

    reason: str


class Noted(msgspec.Struct, frozen=True, tag="noted"):
    """The leader has durably accepted the worker's end: the trainer may exit."""


class Said(msgspec.Struct, frozen=True, tag="said"):
    """A line for the user, beside the output of the script."""

    line: str


FromDaemon = Introduced | Commanded | GaveUp | Noted | Said
