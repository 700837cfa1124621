"""What has happened to a job in numbers that only grow: kept in its record, so that they outlive its leaders.

Owns: their form. Does not own: what makes them grow (`edl.core.job.tallying`), nor their names in metrics
(`edl.daemon.metrics.families`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec


class Doing(StrEnum):
    """What a job spends its time on, as far as its record says. All but TRAINING is a cause of badput."""

    STARTING = "starting"  # no ring yet
    TRAINING = "training"
    FAULT = "fault"  # its ring is broken, and the next one does not train yet
    OVER = "over"  # its time is not counted any more


SWITCH: Final = "switch"  # badput while a planned switch is made
CHECKPOINT: Final = "checkpoint"  # badput while trainers copy their state
BADPUT: Final = (Doing.STARTING.value, Doing.FAULT.value, SWITCH, CHECKPOINT)


class Growth(StrEnum):
    """What a change of the ring was for."""

    GROW = "grow"
    SHRINK = "shrink"
    REPLACE = "replace"  # as many workers as before, not the same ones
    FAULT = "fault"  # the ring before was broken


class LossCause(StrEnum):
    """How a worker was lost."""

    DIED = "died"  # its process ended without a word
    SCRIPT = "script"  # its script raised
    OVERDUE = "overdue"  # it held up the others for too long
    SESSION = "session"  # its daemon, or its host, is not heard of any more
    LEFT_BEHIND = "left_behind"  # the others went on without it
    DIFFERED = "differed"  # it had come to a job that trained, and came to another state than the others


class Tally(msgspec.Struct, frozen=True):
    """Of one life of a job, up to `at`. Seconds of goodput and badput together are those since its first worker came,
    but for `owed_s`: what a pause took is known once it is over, and is made good by what is counted next.
    """

    at: float = 0.0  # seconds since 1970; 0: not begun
    doing: Doing = Doing.STARTING
    good_s: float = 0.0
    owed_s: float = 0.0
    bad_s: dict[str, float] = {}  # by cause
    pause_s: float = 0.0  # the survivors' longest of each switch, added up
    scalings: dict[str, int] = {}  # by Growth
    lost: dict[str, int] = {}  # workers, by LossCause
    unfit: int = 0
    asked_more: int = 0  # workers more than were asked for before, by each request
    voided: int = 0  # workers whose mini-batch was void, once for each ring
    diverged: int = 0
    decisions: int = 0  # of the job's own policy
    checkpoints: int = 0  # durable
    checkpoints_failed: int = 0
    checkpoint_bytes: int = 0
    checkpoint_stall_s: float = 0.0
    checkpointed_at: float = 0.0  # when the newest became durable; 0: none has
