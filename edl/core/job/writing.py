"""What a leader makes durable, and when it tells of it: the order that I9 asks for, as a machine.

Owns: that no decision is told before it is durable, that a write whose answer was lost is neither taken for done
nor done twice, and that a leader whose reign is over tells nothing. Does not own: the decisions
(`edl.core.job.machine`), nor the coordinator: `edl.daemon.chronicle` carries out what is said here, and so does the
simulation.

One batch of inputs is written at a time:

    IDLE ──decided──► WRITING ──written──► (FORGETTING ──forgotten──►) told, IDLE
                       │    ▲
       no answer, or   │    │ the node has the version of before: write again
       another version ▼    │
                      LOOKING ──the node has moved on: the write was carried out──► told

Every write replaces the record, also one that only adds events, on condition that its node still has the version that
was seen last. Only the leader writes (I1), so a version that moved on means: the write was carried out, all of it. One
that is late, and arrives after it was tried again, finds another version and does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, TypeVar

from edl.core.job.inputs import Acknowledge, Command, Input, PublishSaving, Refuse, Tell, TellOfMigration, TellOfSaving
from edl.core.job.machine import JobMachine
from edl.core.job.orders import OrderBook
from edl.errors import InvalidTransition, UsageError
from edl.protocol import messages as say
from edl.protocol.job import OVER, Record

RETRY_S: Final = 0.1

A = TypeVar("A")  # the asker, as the shell knows it


# ------------------------------------------------------------------------------------------------ what is carried out


@dataclass(frozen=True, slots=True)
class Commit:
    """Replace the record and add these events, in one transaction, if we reign and its node has `version`."""

    record: Record
    told: tuple[Tell, ...]
    version: int


@dataclass(frozen=True, slots=True)
class Look:
    """Wait so long, then read which version the record's node has, and see that we still reign."""

    after_s: float


@dataclass(frozen=True, slots=True)
class ForgetSecret:
    """Wait so long, then remove the job's secret: the job is over, and a reader of it could speak in its name."""

    after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Publish:
    """These are the orders from now on. `pressing`: wake all that wait for orders; the others hear when they ask."""

    book: OrderBook
    pressing: bool


@dataclass(frozen=True, slots=True)
class GiveAnswer(Generic[A]):
    """GiveAnswer one request. `stale`: it was refused for that, which is counted."""

    asker: A
    reply: say.Reply
    stale: str = ""


@dataclass(frozen=True, slots=True)
class WriteManifest:
    """Publish the checkpoint whose parts are all durable: `record.saving`. Comes back at once; what came of it is an
    input of the job's machine (`PublishSaving`).
    """

    record: Record


@dataclass(frozen=True, slots=True)
class DeclareRest:
    """Whether a worker waits for what this leader says next; a hand-over waits until none does."""

    at_rest: bool


@dataclass(frozen=True, slots=True)
class StepDown:
    """The reign is over: say nothing more."""


InStore = Commit | Look | ForgetSecret
Telling = Publish | GiveAnswer[A] | WriteManifest | DeclareRest
Instruction = InStore | Telling[A] | StepDown


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
class Conflicted:
    """A commit was refused: the record's node has another version."""


@dataclass(frozen=True, slots=True)
class Found:
    """We still reign, and the record's node has this version."""

    version: int


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The job's secret is gone."""


@dataclass(frozen=True, slots=True)
class Unanswered:
    """The coordinator did not answer. What was asked of it may have been carried out, or may be yet."""


@dataclass(frozen=True, slots=True)
class Deposed:
    """The fence is gone: another leads, or will."""


Outcome = Written | Conflicted | Found | Forgotten | Unanswered | Deposed
Happened = BatchDecided[A] | Outcome


class WritingState(Enum):
    """Where a leader is with what it has decided last."""

    IDLE = "idle"  # it is durable, and told
    WRITING = "writing"  # a commit is under way
    LOOKING = "looking"  # whether one was carried out is not known
    FORGETTING = "forgetting"  # it is durable, and the end of the job: the secret goes before that is told
    OVER = "over"  # it was not told, and never will be


ALLOWED: dict[WritingState, tuple[type, ...]] = {
    WritingState.IDLE: (BatchDecided,),
    WritingState.WRITING: (Written, Conflicted, Unanswered, Deposed),
    WritingState.LOOKING: (Found, Unanswered, Deposed),
    WritingState.FORGETTING: (Forgotten, Unanswered),
    WritingState.OVER: (),
}


class Writing(Generic[A]):
    """One leader's, for one term."""

    def __init__(self, record: Record, version: int, term: int) -> None:
        """`record` as it was found in the coordinator, in a node of that `version`."""
        self.record = record  # as it stands in the coordinator
        self.state = WritingState.IDLE
        self.book: OrderBook | None = None  # what was published last
        self._version = version
        self._term = term
        self._decided: BatchDecided[A] | None = None  # what is being written
        self._commit: Commit | None = None  # with which
        self._next: OrderBook | None = None  # what will be published with it
        self._doubtful = False  # an earlier try may have been carried out, or may be yet
        self._forgotten = False
        self._at_rest = False

    def handle(self, happened: Happened[A]) -> list[Instruction[A]]:
        """Carry out what is returned, in that order; there is at most one thing for the coordinator among it."""
        if not isinstance(happened, ALLOWED[self.state]):
            raise InvalidTransition(self.state, happened)
        match happened:
            case BatchDecided():
                return self._on_decided(happened)
            case Written(version) | Found(version):
                return self._on_version(version)
            case Conflicted():
                return self._on_conflict()
            case Unanswered():
                return self._on_no_answer()
            case Forgotten():
                self._forgotten = True
                return self._told()
            case Deposed():
                self.state, self._decided, self._commit, self._next = WritingState.OVER, None, None, None
                return [*self._unrest(), StepDown()]

    def _on_decided(self, decided: BatchDecided[A]) -> list[Instruction[A]]:
        self._decided, self._doubtful = decided, False
        self._commit = Commit(decided.record, decided.told, self._version)
        changed = decided.record.version != self.record.version
        if changed or self.book is None:  # what it says of the data is worked out before any answer waits for it
            self._next = OrderBook(decided.record, self._term, self.book)
        if changed or decided.told:
            return [*self._unrest(), self._write()]
        return self._on_kept()

    def _write(self) -> Commit:
        """The same, at each try."""
        assert self._commit is not None
        self.state = WritingState.WRITING
        return self._commit

    def _on_no_answer(self) -> list[Instruction[A]]:
        if self.state is WritingState.FORGETTING:
            return [ForgetSecret(RETRY_S)]
        self.state, self._doubtful = WritingState.LOOKING, True
        return [Look(RETRY_S)]

    def _on_conflict(self) -> list[Instruction[A]]:
        if not self._doubtful:
            raise UsageError(
                f"another program has written the record of job {self.record.job}, which its leader alone may write"
            )
        self.state = WritingState.LOOKING  # an earlier try came through after we had looked
        return [Look(0.0)]

    def _on_version(self, version: int) -> list[Instruction[A]]:
        assert self._decided is not None
        if version == self._version:  # as before: nothing was carried out yet
            return [self._write()]
        self._version, self.record = version, self._decided.record
        return self._on_kept()

    def _on_kept(self) -> list[Instruction[A]]:
        """What was decided is on record."""
        if self.record.state in OVER and not self._forgotten:
            self.state = WritingState.FORGETTING
            return [ForgetSecret()]
        return self._told()

    def _told(self) -> list[Instruction[A]]:
        """All may know."""
        assert self._decided is not None
        decided, book = self._decided, self._next
        self.state, self._decided, self._commit, self._next = WritingState.IDLE, None, None, None
        said: list[Instruction[A]] = []
        if book is not None:
            said.append(Publish(book, self.book is None or decided.pressing > self.book.record.version))
            self.book = book
        saving = decided.record.saving
        if saving is not None and saving.number == decided.publishes:
            said.append(WriteManifest(decided.record))
        self._at_rest = decided.at_rest
        return [*said, DeclareRest(decided.at_rest), *decided.answers]

    def _unrest(self) -> list[Instruction[A]]:
        """What is decided and not told yet is waited for."""
        rested, self._at_rest = self._at_rest, False
        return [DeclareRest(at_rest=False)] if rested else []


def decide(machine: JobMachine, batch: Sequence[tuple[Input, A | None]], now: float) -> BatchDecided[A]:
    """Have the job's machine take inputs, and what follows from all of them together is written at once."""
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
