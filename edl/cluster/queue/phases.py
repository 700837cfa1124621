"""The phases of a job in the queue, and the transitions between them. One table; a transition that it lacks is a fault.

    submitted ─► QUEUED ──► STARTING ──► RUNNING ◄──► SCALING ──► FINISHED
                  ▲  └────► RESUMING ──►    │            │         FAILED
                  │            ▲            ▼            ▼         CANCELLED
                  └─ again ─   └── PREEMPTED ◄──── PREEMPTING

Owns: the table. Does not own: why a job failed (`causes`), nor when a transition is made (`scheduler`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from edl.errors import InvalidTransition


class JobPhase(StrEnum):
    """The phase of a job of the cluster."""

    QUEUED = "queued"  # it waits for devices
    STARTING = "starting"  # it has devices, and has not begun to train
    RUNNING = "running"  # it trains with the workers that it is to have
    SCALING = "scaling"  # it trains, and workers come or go
    PREEMPTING = "preempting"  # it is to be saved, and then to go
    PREEMPTED = "preempted"  # it was saved, and waits for devices again
    RESUMING = "resuming"  # it has devices again, and does not train yet
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


class PhaseChange(StrEnum):
    """The events that lead from one phase to the next."""

    PLACED = "devices are its own"
    PLACED_AGAIN = "devices are its own once more"
    TRAINS = "it trains"
    CHANGES = "workers come or go"
    SETTLED = "it has the workers that it is to have"
    SENT_AWAY = "it is to make room"
    SAVED = "it is gone, and can be gone on with"
    AGAIN = "it has failed, and may begin again"
    ENDED = "its work is done"
    GIVEN_UP = "it has failed for good"
    CANCELLED = "its owner has cancelled it"


TERMINAL: Final = frozenset({JobPhase.FINISHED, JobPhase.FAILED, JobPhase.CANCELLED})
WAITING: Final = frozenset({JobPhase.QUEUED, JobPhase.PREEMPTED})
BOOTING: Final = frozenset({JobPhase.STARTING, JobPhase.RESUMING})
TRAINING: Final = frozenset({JobPhase.RUNNING, JobPhase.SCALING})
ACTIVE: Final = BOOTING | TRAINING

_ENDS: Final = {
    PhaseChange.ENDED: JobPhase.FINISHED,
    PhaseChange.GIVEN_UP: JobPhase.FAILED,
    PhaseChange.CANCELLED: JobPhase.CANCELLED,
}
_LIVES: Final = {**_ENDS, PhaseChange.AGAIN: JobPhase.QUEUED, PhaseChange.SENT_AWAY: JobPhase.PREEMPTING}
_GOES: Final = {PhaseChange.GIVEN_UP: JobPhase.FAILED, PhaseChange.CANCELLED: JobPhase.CANCELLED}
_TABLE: Final[dict[JobPhase, dict[PhaseChange, JobPhase]]] = {
    JobPhase.QUEUED: {PhaseChange.PLACED: JobPhase.STARTING, PhaseChange.PLACED_AGAIN: JobPhase.RESUMING, **_GOES},
    JobPhase.STARTING: {PhaseChange.TRAINS: JobPhase.RUNNING, PhaseChange.SAVED: JobPhase.PREEMPTED, **_LIVES},
    JobPhase.RESUMING: {PhaseChange.TRAINS: JobPhase.RUNNING, PhaseChange.SAVED: JobPhase.PREEMPTED, **_LIVES},
    JobPhase.RUNNING: {PhaseChange.CHANGES: JobPhase.SCALING, PhaseChange.SAVED: JobPhase.PREEMPTED, **_LIVES},
    JobPhase.SCALING: {PhaseChange.SETTLED: JobPhase.RUNNING, PhaseChange.SAVED: JobPhase.PREEMPTED, **_LIVES},
    JobPhase.PREEMPTING: {PhaseChange.SAVED: JobPhase.PREEMPTED, PhaseChange.AGAIN: JobPhase.QUEUED, **_ENDS},
    JobPhase.PREEMPTED: {PhaseChange.PLACED_AGAIN: JobPhase.RESUMING, **_GOES},
}
TRANSITIONS: Final = {(phase, turn): to for phase, turns in _TABLE.items() for turn, to in turns.items()}


def after(phase: JobPhase, turn: PhaseChange) -> JobPhase:
    """Raises InvalidTransition."""
    try:
        return TRANSITIONS[phase, turn]
    except KeyError:
        raise InvalidTransition(phase, turn) from None
