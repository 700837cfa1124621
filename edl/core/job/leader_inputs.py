"""Inputs of the job's machine, and the commands that it gives its shell.

What daemons and the command line ask for is fed as it was said (`edl.protocol.leader_messages`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from edl.facts import Fact
from edl.protocol.leader_messages import (
    AskBatch,
    AskCheckpoint,
    AskMigrate,
    AskPreempt,
    AskStop,
    Observation,
    Register,
    Scaling,
)
from edl.protocol.record import Identity
from edl.protocol.tally import Rate


@dataclass(frozen=True, slots=True)
class TookOver:
    """`alive` are the workers whose daemons have a session."""

    alive: frozenset[str]
    wall: float = 0.0  # seconds since 1970; 0: this leader's own clock is that of the leaders before


@dataclass(frozen=True, slots=True)
class Reported:
    worker: str
    observation: Observation


@dataclass(frozen=True, slots=True)
class Vanished:
    """A worker's daemon has no session any more."""

    worker: str
    reason: str


@dataclass(frozen=True, slots=True)
class NotListening:
    """Report that at the addresses of these `silent` daemons no process listens any more."""

    daemons: tuple[Identity, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """Keep the measured rate of each size for the next leader."""

    rates: tuple[Rate, ...]


@dataclass(frozen=True, slots=True)
class Ruled:
    """Decision of the job's own policy. `act`: it is to be done, and not only told."""

    size: int
    replace: tuple[str, ...]
    reason: str
    numbers: dict[str, float]
    act: bool
    shares: dict[str, float] = field(default_factory=dict)  # of the batch, by worker


@dataclass(frozen=True, slots=True)
class SavingPublished:
    """The manifest of that saving is durable: from now on the checkpoint exists."""

    number: int


@dataclass(frozen=True, slots=True)
class PublishingFailed:
    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class TimePassed:
    """No other input has come; a worker may be overdue."""


FromPublisher = SavingPublished | PublishingFailed
FromWorkers = Register | Reported | Vanished | NotListening
Asked = AskStop | AskBatch | AskCheckpoint | AskPreempt | AskMigrate | Scaling
Input = TookOver | FromWorkers | Asked | FromPublisher | Measured | Ruled | TimePassed


@dataclass(frozen=True, slots=True)
class Tell:
    """Write down an event, in the transaction that makes the record durable."""

    fact: Fact
    generation: int
    step: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """`stale` refusals are counted under that name and not logged (I10)."""

    reason: str
    stale: str = ""
    retry: bool = False


NOT_BEGUN: Final = Refuse("none of its workers has joined yet", retry=True)


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Answer a request for another size: it is taken, and with it `target` workers are asked for."""

    target: int


@dataclass(frozen=True, slots=True)
class TellOfSaving:
    """Answer a request for a checkpoint: it is on record, and if `path` is not empty, so is the durable one."""

    step: int
    path: str


@dataclass(frozen=True, slots=True)
class TellOfMigration:
    """Answer a request to move workers: it is on record, and if `done`, it was carried out."""

    done: bool


@dataclass(frozen=True, slots=True)
class PublishSaving:
    """Write the manifest of the saving on record, once the record is durable, beside all else.

    `SavingPublished` or `PublishingFailed` is the answer. The command may be repeated, by this leader or another one,
    even if it was carried out: a manifest that says the same counts as written now.
    """

    number: int


Command = Tell | Refuse | Acknowledge | TellOfSaving | TellOfMigration | PublishSaving
