"""The machine that makes a leader's decisions durable before any worker hears of them (I9).

Owns: the order of a decision's write, its publication and the answers that depend on it. Does not own: the decisions
(`edl.core.job.leader_machine`), nor the coordinator: `edl.daemon.record_store` carries out the commands, and so
does the simulation.

One batch of inputs is written at a time:

    IDLE ──decided──► WRITING ──written──► (FORGETTING ──forgotten──►) told, IDLE

Every write replaces the record, also a write that only adds events, on condition that the record's node still has the
version that was seen last. When the coordinator does not answer a write, this machine is given up unheard: the leader
begins another term, whose machines are made from the record that it then finds. That record has the whole decision or
nothing of it, and no write of the term before can change it any more, as each checks its term's fence (I1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from edl.core.job.leader_inputs import (
    Acknowledge,
    Command,
    Input,
    PublishSaving,
    Refuse,
    Tell,
    TellOfMigration,
    TellOfSaving,
)
from edl.core.job.leader_machine import JobMachine
from edl.core.job.orders import OrderBook
from edl.errors import InvalidTransition
from edl.protocol import leader_messages as say
from edl.protocol.record import OVER, Record

A = TypeVar("A")  # the asker, as the shell knows it


# ------------------------------------------------------------------------------------------------ what is carried out


@dataclass(frozen=True, slots=True)
class Commit:
    """Replace the record and add these events, in one transaction, if we reign and its node has `version`."""

    record: Record
    told: tuple[Tell, ...]
    version: int


@dataclass(frozen=True, slots=True)
class ForgetSecret:
    """Remove the job's secret: the job is over, and a reader of the secret could speak in the job's name."""


@dataclass(frozen=True, slots=True)
class Publish:
    """Give out these orders from now on. `pressing`: wake all that wait for orders; the others hear when they ask."""

    book: OrderBook
    pressing: bool


@dataclass(frozen=True, slots=True)
class GiveAnswer(Generic[A]):
    """Answer one request. `stale`: the reason, which is counted, if the request was refused as stale."""

    asker: A
    reply: say.Reply
    stale: str = ""


@dataclass(frozen=True, slots=True)
class WriteManifest:
    """Publish the checkpoint whose parts are all durable: `record.checkpoints.saving`. Comes back at once; what came of
    it is an input of the job's machine (`PublishSaving`).
    """

    record: Record


@dataclass(frozen=True, slots=True)
class DeclareRest:
    """Say whether a worker waits for what this leader says next; a hand-over waits until none does."""

    at_rest: bool


InStore = Commit | ForgetSecret
Telling = Publish | GiveAnswer[A] | WriteManifest | DeclareRest
Instruction = InStore | Telling[A]


# ------------------------------------------------------------------------------------------------------ what happened


@dataclass(frozen=True, slots=True)
class BatchDecided(Generic[A]):
    """The job's machine has taken a batch of inputs. It takes no other before this one is durable."""

    record: Record
    told: tuple[Tell, ...]
    answers: tuple[GiveAnswer[A], ...]
    pressing: int  # the newest version of the record that workers must hear of at once
    at_rest: bool
    publishes: int = 0  # number of the saving that is to be published, if one is


@dataclass(frozen=True, slots=True)
class Written:
    """A commit was carried out, and the record's node has this version."""

    version: int


@dataclass(frozen=True, slots=True)
class Forgotten: ...


Outcome = Written | Forgotten
Happened = BatchDecided[A] | Outcome


class WritingState(Enum):
    """Progress of a leader's newest batch."""

    IDLE = "idle"  # it is durable, and told
    WRITING = "writing"  # a commit is under way
    FORGETTING = "forgetting"  # it is durable, and the end of the job: the secret goes before that is told


ALLOWED: dict[WritingState, type] = {
    WritingState.IDLE: BatchDecided,
    WritingState.WRITING: Written,
    WritingState.FORGETTING: Forgotten,
}


class Writing(Generic[A]):
    def __init__(self, record: Record, version: int, term: int) -> None:
        """`record` was found in the coordinator, in a node of that `version`."""
        self.record = record  # as it stands in the coordinator
        self.state = WritingState.IDLE
        self.book: OrderBook | None = None  # what was published last
        self._version = version
        self._term = term
        self._decided: BatchDecided[A] | None = None  # what is being written
        self._next: OrderBook | None = None  # what will be published with it
        self._forgotten = False
        self._at_rest = False

    @property
    def commit(self) -> Commit | None:
        """The write whose outcome is not known yet."""
        if self.state is not WritingState.WRITING or self._decided is None:
            return None
        return Commit(self._decided.record, self._decided.told, self._version)

    def handle(self, happened: Happened[A]) -> list[Instruction[A]]:
        """Return what is to be carried out, in that order, with at most one command for the coordinator."""
        if not isinstance(happened, ALLOWED[self.state]):
            raise InvalidTransition(self.state, happened)
        match happened:
            case BatchDecided():
                return self._on_decided(happened)
            case Written(version):
                assert self._decided is not None
                self._version, self.record = version, self._decided.record
                return self._on_kept()
            case Forgotten():
                self._forgotten = True
                return self._told()

    def _on_decided(self, decided: BatchDecided[A]) -> list[Instruction[A]]:
        self._decided = decided
        changed = decided.record.version != self.record.version
        if changed or self.book is None:  # what it says of the data is worked out before any answer waits for it
            self._next = OrderBook(decided.record, self._term, self.book)
        if not changed and not decided.told:
            return self._on_kept()
        self.state = WritingState.WRITING
        return [*self._unrest(), Commit(decided.record, decided.told, self._version)]

    def _on_kept(self) -> list[Instruction[A]]:
        if self.record.state in OVER and not self._forgotten:
            self.state = WritingState.FORGETTING
            return [ForgetSecret()]
        return self._told()

    def _told(self) -> list[Instruction[A]]:
        """Return all that depends on the decision, which is durable."""
        assert self._decided is not None
        decided, book = self._decided, self._next
        self.state, self._decided, self._next = WritingState.IDLE, None, None
        said: list[Instruction[A]] = []
        if book is not None:
            said.append(Publish(book, self.book is None or decided.pressing > self.book.record.version))
            self.book = book
        saving = decided.record.checkpoints.saving
        if saving is not None and saving.number == decided.publishes:
            said.append(WriteManifest(decided.record))
        self._at_rest = decided.at_rest
        return [*said, DeclareRest(decided.at_rest), *decided.answers]

    def _unrest(self) -> list[Instruction[A]]:
        """Return the news that some worker waits: for a decision that is not told yet."""
        rested, self._at_rest = self._at_rest, False
        return [DeclareRest(at_rest=False)] if rested else []


def decide(machine: JobMachine, batch: Sequence[tuple[Input, A | None]], now: float) -> BatchDecided[A]:
    """Let the job's machine take inputs; what follows from all of them together is written at once."""
    told: list[Tell] = []
    answers: list[GiveAnswer[A]] = []
    publishes = 0
    for left, (happened, asker) in zip(range(len(batch) - 1, -1, -1), batch, strict=True):
        follows = machine.handle(happened, now, more=left > 0)
        told += [command for command in follows if isinstance(command, Tell)]
        publishes = max([publishes, *(one.number for one in follows if isinstance(one, PublishSaving))])
        if asker is not None:
            answers.append(_answer(asker, follows))
    return BatchDecided(machine.record, tuple(told), tuple(answers), machine.pressing, machine.at_rest, publishes)


def _answer(asker: A, follows: Sequence[Command]) -> GiveAnswer[A]:
    for command in follows:
        if isinstance(command, Refuse):
            return GiveAnswer(asker, say.Rejected(command.reason, command.retry), command.stale)
        if isinstance(command, Acknowledge):
            return GiveAnswer(asker, say.Ack(command.target))
        if isinstance(command, TellOfSaving):
            return GiveAnswer(asker, say.SaveTold(command.step, command.path))
        if isinstance(command, TellOfMigration):
            return GiveAnswer(asker, say.MoveTold(command.done))
    return GiveAnswer(asker, say.Done())
