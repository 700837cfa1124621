"""A worker's way through a job, as the leader sees it.

             Register         rehearsal began      rehearsed
    (new) ─────────────► JOINING ───────────► WARMING ──────────► READY
                            │ first generation                      │ planned
                            └──────────────► SWITCHING ◄────────────┤
                                     entered │  ▲ planned           │ plan dropped
                                             ▼  │                   │
                                          TRAINING ─────────────────┘
                                  told to    │        script ended
                                  leave      ▼
                                          LEAVING ──────────► DONE

While there is no generation yet, a plan that is dropped brings those of its members that have not booted back to
JOINING; a switch that is put off brings those who train back to TRAINING. A worker that is lost or has left is not a
state: it is not a member any more. The table below is the picture, and `docs/states-and-events.md` shows it; a test
compares the two.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from edl.errors import InvalidTransition
from edl.protocol.record import Member, WorkerState


class Cause(StrEnum):
    REHEARSAL_BEGAN = "rehearsal began"
    REHEARSED = "rehearsed"
    PLANNED = "planned"
    UNPLANNED = "unplanned"
    UNPLANNED_FIRST = "first plan dropped"
    PUT_OFF = "switch put off"
    ENTERED = "entered"
    TOLD_TO_LEAVE = "told to leave"
    ENDED = "ended"


_S = WorkerState
TRANSITIONS: Final[dict[tuple[WorkerState, Cause], WorkerState]] = {
    (_S.JOINING, Cause.REHEARSAL_BEGAN): _S.WARMING,
    (_S.JOINING, Cause.REHEARSED): _S.READY,
    (_S.WARMING, Cause.REHEARSED): _S.READY,
    (_S.JOINING, Cause.PLANNED): _S.SWITCHING,  # only into the first generation, where no worker trains yet
    (_S.READY, Cause.PLANNED): _S.SWITCHING,
    (_S.TRAINING, Cause.PLANNED): _S.SWITCHING,
    (_S.SWITCHING, Cause.PLANNED): _S.SWITCHING,  # a newer plan supersedes
    (_S.SWITCHING, Cause.UNPLANNED): _S.READY,
    (_S.SWITCHING, Cause.UNPLANNED_FIRST): _S.JOINING,  # it has not booted: it waits inside `init` again
    (_S.SWITCHING, Cause.PUT_OFF): _S.TRAINING,  # in the ring before, which it has not left
    (_S.SWITCHING, Cause.ENTERED): _S.TRAINING,
    (_S.JOINING, Cause.TOLD_TO_LEAVE): _S.LEAVING,
    (_S.WARMING, Cause.TOLD_TO_LEAVE): _S.LEAVING,
    (_S.READY, Cause.TOLD_TO_LEAVE): _S.LEAVING,
    (_S.TRAINING, Cause.TOLD_TO_LEAVE): _S.LEAVING,
    (_S.SWITCHING, Cause.TOLD_TO_LEAVE): _S.LEAVING,
    (_S.JOINING, Cause.ENDED): _S.DONE,
    (_S.WARMING, Cause.ENDED): _S.DONE,
    (_S.READY, Cause.ENDED): _S.DONE,
    (_S.SWITCHING, Cause.ENDED): _S.DONE,
    (_S.TRAINING, Cause.ENDED): _S.DONE,
    (_S.LEAVING, Cause.ENDED): _S.DONE,
}


def moved(member: Member, cause: Cause) -> Member:
    try:
        state = TRANSITIONS[member.state, cause]
    except KeyError:
        raise InvalidTransition(member.state, cause, [member]) from None
    return msgspec.structs.replace(member, state=state)


def may(member: Member, cause: Cause) -> bool:
    return (member.state, cause) in TRANSITIONS
