"""A trainer's way through a job, as it knows it itself.

                    boots alone             asked for data
          COMING ─────────────────► BOOTING ─────────────► REHEARSING
            │ ▲                        │ batch ended             │ batch ended
    enters  │ │ ring failed            ▼                         │
            │ └──(never booted)──   WAITING ◄────────────────────┘
            │                        │ ▲  ▲
            │                 enters │ │  │ void
            ▼                        ▼ │  │
          ENTERING ◄─────────────────┘ │  │
            │  │ ring failed            │  │
            │  └────────────────────────┘  │
            │ stands                       │
            ▼            has data          │    looks           goes on
          AWAITING_SHARE ───────► TRAINING ┴──────────► BETWEEN ───────► TRAINING

A ring that stands before the script has asked for data leads to TRAINING at once. The next ring is entered from COMING,
WAITING, AWAITING_SHARE and BETWEEN: nowhere else, as only there no mini-batch is worked on. What obeys its orders to
leave, or to stop, is LEAVING from wherever it was; a script that has ended is OVER. The table below is all of it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from edl.errors import InvalidTransition


class TrainerState(StrEnum):
    COMING = "coming"  # inside `init()`: it waits for its place in the first ring, or for the word to boot alone
    BOOTING = "booting alone"  # in a ring of one: the script imports, and builds its model
    REHEARSING = "rehearsing"  # in that ring it was handed the mini-batch that does not count
    WAITING = "waiting for orders"  # it cannot train on: it has rehearsed, or its ring is broken
    ENTERING = "entering"  # it goes to the next ring, and agrees there on the state to begin in
    AWAITING_SHARE = "awaiting its share"  # that ring stands; its data is not known yet
    TRAINING = "training"
    BETWEEN = "between two mini-batches"  # its orders say how it goes on; at a mark it waits there for what follows
    LEAVING = "leaving"  # it has left its ring for good, and its script comes to an end
    OVER = "over"  # the script has ended


class StateChange(StrEnum):
    BOOTS_ALONE = "boots alone"
    ASKED_FOR_DATA = "asked for data"
    BATCH_ENDED = "batch ended"
    VOID = "void"
    LOOKS = "looks at its orders"
    GOES_ON = "goes on"
    ENTERS = "enters"
    RING_FAILED = "ring failed"
    RING_FAILED_FIRST = "ring failed before it had booted"
    STANDS = "ring stands"
    STANDS_WITHOUT_DATA = "ring stands, and no data was asked for"
    HAS_DATA = "has data"
    STATE_LOST = "state lost"
    OBEYS = "obeys"
    ENDED = "script ended"


_S = TrainerState
_GOES: Final[dict[tuple[TrainerState, StateChange], TrainerState]] = {
    (_S.COMING, StateChange.BOOTS_ALONE): _S.BOOTING,
    (_S.BOOTING, StateChange.ASKED_FOR_DATA): _S.REHEARSING,
    (_S.BOOTING, StateChange.BATCH_ENDED): _S.WAITING,  # the script brings data of its own
    (_S.REHEARSING, StateChange.BATCH_ENDED): _S.WAITING,
    (_S.COMING, StateChange.ENTERS): _S.ENTERING,  # the first ring, before any worker has booted
    (_S.WAITING, StateChange.ENTERS): _S.ENTERING,
    (_S.AWAITING_SHARE, StateChange.ENTERS): _S.ENTERING,  # the ring that stands counts for nothing
    (_S.BETWEEN, StateChange.ENTERS): _S.ENTERING,
    (_S.ENTERING, StateChange.RING_FAILED): _S.WAITING,
    (_S.ENTERING, StateChange.RING_FAILED_FIRST): _S.COMING,
    (_S.ENTERING, StateChange.STANDS): _S.AWAITING_SHARE,
    (_S.ENTERING, StateChange.STANDS_WITHOUT_DATA): _S.TRAINING,
    (_S.AWAITING_SHARE, StateChange.HAS_DATA): _S.TRAINING,
    (_S.ENTERING, StateChange.STATE_LOST): _S.LEAVING,
    (_S.TRAINING, StateChange.VOID): _S.WAITING,
    (_S.BETWEEN, StateChange.VOID): _S.WAITING,  # its script came here again, though it was told that it cannot go on
    (_S.WAITING, StateChange.VOID): _S.WAITING,
    (_S.WAITING, StateChange.BATCH_ENDED): _S.WAITING,
    (_S.TRAINING, StateChange.LOOKS): _S.BETWEEN,
    (_S.BETWEEN, StateChange.LOOKS): _S.BETWEEN,
    (_S.BETWEEN, StateChange.GOES_ON): _S.TRAINING,
}
LIVING: Final = tuple(state for state in TrainerState if state is not TrainerState.OVER)
TRANSITIONS: Final[dict[tuple[TrainerState, StateChange], TrainerState]] = {
    **_GOES,
    **{(state, StateChange.OBEYS): TrainerState.LEAVING for state in LIVING},
    **{(state, StateChange.ENDED): TrainerState.OVER for state in TrainerState},
}

ALONE: Final = frozenset({_S.BOOTING, _S.REHEARSING})  # in a ring of one
SITTING: Final = frozenset({_S.AWAITING_SHARE, _S.TRAINING, _S.BETWEEN})  # in a ring of the job
ENDING: Final = frozenset({_S.LEAVING, _S.OVER})  # its script comes to an end: it goes to no other ring
READY: Final = frozenset({_S.COMING, _S.WAITING, _S.AWAITING_SHARE})  # it could enter a ring, and not train on


def following(state: TrainerState, cause: StateChange) -> TrainerState:
    try:
        return TRANSITIONS[state, cause]
    except KeyError:
        raise InvalidTransition(state, cause) from None
