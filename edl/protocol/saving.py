"""The nouns of checkpoints: what is kept of a job, by whom, where, and what a later life of it begins with.

A *life* of a job goes from one start to its end; a later one may be resumed from a checkpoint of an earlier one. A
*saving* is a checkpoint in the making: it has a number that is never used twice in a life, which is part of its path.
So no two of them share a folder, whichever leader has begun them, and at whichever step.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import msgspec

from edl.protocol.ledger import LedgerSnapshot

PREEMPTED_CODE: Final = 75  # exit code of a job that was asked to go, and can be gone on with (EX_TEMPFAIL)
SPARE: Final = "copy.spare"  # a trainer's copy that its daemon is through with, in their folder: written again


class Auto(msgspec.Struct, frozen=True):
    """The job chooses its interval by itself (`edl.core.checkpoint.interval`), within these."""

    overhead: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.01  # the share of its time that training may lose to it
    least_s: Annotated[float, msgspec.Meta(gt=0)] = 10.0
    fault_s: Annotated[float, msgspec.Meta(gt=0)] = 3600.0  # from one fault to the next, before any was seen


class Checkpointing(msgspec.Struct, frozen=True):
    """When a job is saved, and where, as its first worker says it."""

    folder: str = ""  # a path or a URL; empty: it is not saved
    every_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0  # seconds from one to the next; 0: not by time
    every_steps: Annotated[int, msgspec.Meta(ge=0)] = 0  # likewise
    keep: Annotated[int, msgspec.Meta(ge=1)] = 2  # of those that are durable, the newest ones
    last: bool = False  # one more after the last step, where that is known beforehand
    life: Annotated[int, msgspec.Meta(ge=1)] = 1  # of the job, in that folder
    auto: Auto | None = None  # in place of `every_s`


class Why(StrEnum):
    """What a saving was begun for."""

    TIME = "time"
    STEPS = "steps"
    ASKED = "asked"
    LAST = "last"  # of the last step that there is
    PREEMPT = "preempt"  # the job is to go


class FileInfo(msgspec.Struct, frozen=True, array_like=True):
    """A file that is durable, in the folder of its checkpoint."""

    name: str
    bytes: int
    checksum: str


class PartInfo(msgspec.Struct, frozen=True, array_like=True):
    """One worker's part of a checkpoint, which is durable."""

    files: tuple[FileInfo, ...]  # its share of the model's state, and what is each worker's own
    stall_ms: float = 0.0  # for so long copying held up its trainer


class DurablePart(msgspec.Struct, frozen=True, array_like=True):
    """Whose it is."""

    worker: str
    info: PartInfo


class Saving(msgspec.Struct, frozen=True):
    """A checkpoint in the making: announced, and neither durable nor given up."""

    number: int  # of those of this life, from 1
    why: Why
    generation: int
    after_step: int  # each member copies what it has after just this step, in the ring of that generation
    roster: tuple[str, ...]  # of that ring: a worker's rank is the number of its part
    path: str
    ledger: LedgerSnapshot | None  # as of `after_step`; None where scripts bring data of their own
    parts: tuple[
        DurablePart, ...
    ] = ()  # all of them, by rank, once it is to be published; before, those no worker repeats
    stands: bool = False  # the members make no steps: each that is at `after_step` copies where it stands

    @property
    def complete(self) -> bool:
        """Only its manifest is missing."""
        return len(self.parts) == len(self.roster)


class Saved(msgspec.Struct, frozen=True):
    """A checkpoint that is durable (I16)."""

    number: int
    step: int  # of this life
    path: str


class SavingFailure(msgspec.Struct, frozen=True, array_like=True):
    """Why no checkpoint has become durable since the newest one that has."""

    reason: str  # of the newest that was given up
    times: int  # in a row


class Cost(msgspec.Struct, frozen=True, array_like=True):
    """What one checkpoint that is durable has cost."""

    stall_s: float  # for so long it held up the trainer that it held up longest
    lost_s: (
        float | None
    )  # so much longer its steps took, with that; below 0 by chance. None: its leader has not seen it
    took_s: float | None  # until it was durable; likewise


class SaveRequest(msgspec.Struct, frozen=True):
    """A request for a checkpoint that was taken, and what has come of it. When it comes again, it hears that."""

    request: str  # its id
    first: int  # number of the first saving that serves it
    step: int = 0
    path: str = ""  # once one is durable
    failure: str = ""  # why none is, once that is given up


class Preemption(msgspec.Struct, frozen=True):
    """The job is to be saved, and then to go."""

    reason: str
    saves: int  # begun before
    deadline_s: float  # then it goes, saved or not


class Save(msgspec.Struct, frozen=True):
    """What a worker is told of a saving."""

    number: int
    generation: int
    after_step: int
    part: int  # its rank
    parts: int
    path: str
    stands: bool = False  # also if it works on the mini-batch after that step, and has not begun its update


class Hold(msgspec.Struct, frozen=True):
    """Members of that ring begin no mini-batch beyond that step: the job is to go with what is copied after it."""

    generation: int
    after_step: int


class Resumed(msgspec.Struct, frozen=True):
    """The checkpoint that this life of a job begins with. Its own steps count from 0."""

    step: int  # of all lives before, together
    life: int  # the one that has saved it
    path: str
    ledger: LedgerSnapshot | None = None
    epoch: int = 0  # in which it goes on


class Origin(msgspec.Struct, frozen=True):
    """What a script is told of the checkpoint that its job goes on from (`edl.resumed()`)."""

    path: str  # of the checkpoint
    step: int  # mini-batches that are in it: of all lives before, together
    life: int  # number of the present one, from 1
    epoch: int  # that the job goes on in


def path_of(checkpointing: Checkpointing, job: str, number: int, step: int) -> str:
    """Where a checkpoint lies. A number is given out by a write that only a reigning leader can make: it fences."""
    folder = checkpointing.folder.rstrip("/")
    return f"{folder}/{job}/{checkpointing.life:04d}-{number:06d}-{step:012d}"
