"""The nouns of checkpoints: the parts that workers save of a job, their place, and the start of a later life.

A *life* of a job goes from one start to its end; a later life may resume from a checkpoint of an earlier one. A
*saving* is a checkpoint in the making: it has a number that is never used twice in a life, which is part of its path.
So no two savings share a folder, whichever leader has begun them, and at whichever step.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import msgspec

from edl.protocol.data_nouns import LedgerSnapshot

PREEMPTED_CODE: Final = 75  # exit code of a preempted job, which can be resumed (EX_TEMPFAIL)
SPARE: Final = "copy.spare"  # a trainer's copy that its daemon has finished with, in their folder: written again


class Auto(msgspec.Struct, frozen=True):
    """An interval that the job chooses by itself (`edl.core.checkpoint.due_times`), within these bounds."""

    # the share of its time that training may lose to checkpoints
    overhead: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.01
    least_s: Annotated[float, msgspec.Meta(gt=0)] = 10.0
    fault_s: Annotated[float, msgspec.Meta(gt=0)] = 3600.0  # from one fault to the next, before any was seen


class Checkpointing(msgspec.Struct, frozen=True):
    """The times and the place of a job's checkpoints, as its first worker tells them."""

    folder: str = ""  # a path or a URL; empty: it is not saved
    every_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0  # seconds from one checkpoint to the next; 0: not by time
    every_steps: Annotated[int, msgspec.Meta(ge=0)] = 0  # likewise
    keep: Annotated[int, msgspec.Meta(ge=1)] = 2  # number of durable checkpoints that are kept, the newest ones
    last: bool = False  # one more after the last step, if that is known beforehand
    life: Annotated[int, msgspec.Meta(ge=1)] = 1  # of the job, in that folder
    auto: Auto | None = None  # in place of `every_s`


class Why(StrEnum):
    """The trigger of a saving."""

    TIME = "time"
    STEPS = "steps"
    ASKED = "asked"
    LAST = "last"  # the last step of the job
    PREEMPT = "preempt"  # the job is preempted
    REMNANTS = "remnants"  # no worker is whole, and what is left of several holds the model


class FileInfo(msgspec.Struct, frozen=True, array_like=True):
    """A file that is durable, in the folder of its checkpoint."""

    name: str
    bytes: int
    checksum: str


class PartInfo(msgspec.Struct, frozen=True, array_like=True):
    """The durable part of one worker in a checkpoint."""

    files: tuple[FileInfo, ...]  # of each of its processes two: its share of the model's state, and its own state
    stall_ms: float = 0.0  # for so long copying delayed its trainer


class DurablePart(msgspec.Struct, frozen=True, array_like=True):
    worker: str
    info: PartInfo


class Remnant(msgspec.Struct, frozen=True, array_like=True):
    """The processes of a worker that live after another of its processes has died. Their daemon has stopped them."""

    worker: str
    limbs: tuple[int, ...]  # their places in the worker
    step: int  # that each of them has applied


class Saving(msgspec.Struct, frozen=True):
    """A checkpoint in the making: announced, and neither durable nor given up."""

    number: int  # counts the savings of this life, from 1
    why: Why
    generation: int
    after_step: int  # each member copies its state after just this step, in the ring of that generation
    roster: tuple[str, ...]  # of that ring: a worker's rank is the number of its part
    path: str
    ledger: LedgerSnapshot | None  # as of `after_step`; None if scripts bring data of their own
    parts: tuple[
        DurablePart, ...
    ] = ()  # all of them, by rank, once it is to be published; before, those that no worker repeats
    stands: bool = False  # the members make no steps: each member at `after_step` copies at once
    # instead of members: together they are one worker, and each copies the parts of its processes' places
    remnants: tuple[Remnant, ...] = ()

    @property
    def complete(self) -> bool:
        """Tell whether only the manifest is missing."""
        return len(self.parts) == len(self.roster)


class Saved(msgspec.Struct, frozen=True):
    """A checkpoint that is durable (I16)."""

    number: int
    step: int  # of this life
    path: str


class SavingFailure(msgspec.Struct, frozen=True, array_like=True):
    """The failures since the newest durable checkpoint."""

    reason: str  # of the newest saving that was given up
    times: int  # in a row


class Cost(msgspec.Struct, frozen=True, array_like=True):
    """The cost of one durable checkpoint."""

    stall_s: float  # the longest delay of a trainer by copying
    lost_s: (
        float | None
    )  # so much longer its steps took, including the stall; below 0 by chance. None: its leader has not seen it
    took_s: float | None  # until the checkpoint was durable; likewise


class SaveRequest(msgspec.Struct, frozen=True):
    """A request for a checkpoint that was accepted, and its result. If the request comes again, the answer is that
    result.
    """

    request: str  # its id
    first: int  # number of the first saving that serves it
    step: int = 0
    path: str = ""  # once a checkpoint is durable
    failure: str = ""  # why no checkpoint is durable, once it is given up


class Preemption(msgspec.Struct, frozen=True):
    """The preemption of a job, which is to be saved, and then to end."""

    reason: str
    saves: int  # savings begun before
    deadline_s: float  # then the job ends, saved or not


class Save(msgspec.Struct, frozen=True):
    """The order to a worker to copy its part of a saving."""

    number: int
    generation: int
    after_step: int
    part: int  # its rank
    parts: int
    path: str
    stands: bool = False  # also if the worker is in the mini-batch after that step, and has not begun its update
    limbs: tuple[int, ...] = ()  # these processes of a worker that has lost others; empty: all


class Hold(msgspec.Struct, frozen=True):
    """The order to members of that ring to begin no mini-batch beyond that step: the job is preempted with the copy
    after it.
    """

    generation: int
    after_step: int


class Resumed(msgspec.Struct, frozen=True):
    """The checkpoint that this life of a job resumes from. Its own steps count from 0."""

    step: int  # of all earlier lives together
    life: int  # the life that has saved it
    path: str
    ledger: LedgerSnapshot | None = None
    epoch: int = 0  # the epoch in which it resumes


class Origin(msgspec.Struct, frozen=True):
    """The checkpoint that a job resumed from, as its script sees it (`edl.resumed()`)."""

    path: str  # of the checkpoint
    step: int  # mini-batches that it contains: of all earlier lives together
    life: int  # number of the present life, from 1
    epoch: int  # the epoch in which the job resumes


def path_of(checkpointing: Checkpointing, job: str, number: int, step: int) -> str:
    # The number is allocated by a write that only the reigning leader can make, so paths are fenced.
    folder = checkpointing.folder.rstrip("/")
    return f"{folder}/{job}/{checkpointing.life:04d}-{number:06d}-{step:012d}"
