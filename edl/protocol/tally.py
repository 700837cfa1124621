"""The figures of a job: its counters, the resource use of its workers, and the throughput at a size.

Counters only grow, and are kept in the job's record, so that they outlive its leaders. Owns: the forms. Does not own:
what increments counters (`edl.core.job.counters`), nor their names in metrics (`edl.daemon.metrics.families`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec


class Rate(msgspec.Struct, frozen=True):
    """The measured throughput of a job of `size` workers."""

    size: int
    batches: int  # measured batches
    samples: int  # samples trained in these
    seconds: float  # seconds that these took

    @property
    def samples_s(self) -> float:
        """Return the throughput."""
        return self.samples / self.seconds if self.seconds > 0 else 0.0

    @property
    def step_s(self) -> float:
        """Return the mean time of a step."""
        return self.seconds / self.batches if self.batches else 0.0


class Usage(msgspec.Struct, frozen=True):
    """The resources that a worker has used since its trainer began; the difference of two gives a rate."""

    at: float  # seconds, on the worker's own clock
    step: int
    waited_s: float = 0.0  # waiting for peers, including the transfer itself
    loaded_s: float = 0.0  # waiting for samples
    cpu_s: float = 0.0
    memory: int = 0  # bytes held now
    reported: dict[str, float] = {}  # the newest value of each figure that the script reports
    computed_s: float = 0.0  # in rings, neither waiting nor loading; never shrinks


HELD: Final = "held"


class LimbSeen(msgspec.Struct, frozen=True):
    """A process of a worker that has several, as the worker's daemon sees it."""

    pid: int
    state: str  # the phase of its trainer; "gone": it has ended; "held": stopped, as another process has died
    step: int  # committed by this process


class Doing(StrEnum):
    """The activity of a job, as far as its record tells. All but TRAINING is a cause of badput."""

    STARTING = "starting"  # no ring yet
    TRAINING = "training"
    FAULT = "fault"  # its ring is broken, and the next one does not train yet
    OVER = "over"  # its time is not counted any more


SWITCH: Final = "switch"  # badput while a planned switch is made
CHECKPOINT: Final = "checkpoint"  # badput while trainers copy their state
BADPUT: Final = (Doing.STARTING.value, Doing.FAULT.value, SWITCH, CHECKPOINT)


class Growth(StrEnum):
    """The purpose of a change of the ring."""

    GROW = "grow"
    SHRINK = "shrink"
    REPLACE = "replace"  # as many workers as before, not the same ones
    FAULT = "fault"  # the ring before was broken


class LossCause(StrEnum):
    DIED = "died"  # its process ended without a message
    SCRIPT = "script"  # its script raised
    OVERDUE = "overdue"  # it held up the others for too long
    SESSION = "session"  # its daemon, or its host, does not answer any more
    LEFT_BEHIND = "left_behind"  # the others trained on without it
    CORRUPTED = "corrupted"  # it had computed wrongly, or its state was not what most had
    DIFFERED = "differed"  # it had come to a job that trained, and reached another state than the others


class Tally(msgspec.Struct, frozen=True):
    """The counters of one life of a job, up to `at`. Goodput and badput together are the seconds since its first worker
    came, but for `owed_s`: the length of a pause is known once it is over, and what is counted next makes up for it.
    """

    at: float = 0.0  # seconds since 1970; 0: not begun
    doing: Doing = Doing.STARTING
    good_s: float = 0.0
    owed_s: float = 0.0
    bad_s: dict[str, float] = {}  # by cause
    pause_s: float = 0.0  # the longest pause of survivors in each switch, summed up
    scalings: dict[str, int] = {}  # by Growth
    lost: dict[str, int] = {}  # workers, by LossCause
    unfit: int = 0
    asked_more: int = 0  # workers more than before, by each request
    voided: int = 0  # workers whose mini-batch was void, once for each ring
    diverged: int = 0
    decisions: int = 0  # of the job's own policy
    checkpoints: int = 0  # durable
    checkpoints_failed: int = 0
    checkpoint_bytes: int = 0
    checkpoint_stall_s: float = 0.0
    checkpointed_at: float = 0.0  # when the newest became durable; 0: none has
