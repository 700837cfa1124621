"""Decide what follows from what the processes of one worker, its limbs, tell each other: all must decide alike.

A worker may be several processes, its limbs, each with a machine of its own (`edl.core.worker.worker_machine`). The
machines decide by what they hear; so limbs whose training threads hear the same, in the same order, decide the same.
Each row here is exchanged by all limbs at the same place of the same script.

Owns: the rows, and what follows from those of all limbs. Does not own: how rows travel (`edl.trainer.limb_agreement`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from edl.core.worker.agreement import Vote
from edl.core.worker.worker_inputs import BatchVoid, Input, RingFailed, StateComes, StateCopied, VotesHeard
from edl.errors import JobFailed

LANES: Final = 6  # whole numbers of a row
ELSEWHERE: Final = "the ring of another process of this worker has failed"
UNLIKE: Final = "the rings of this worker's processes do not agree: the processes of another worker differ"


class Occasion(IntEnum):
    """The place at which limbs exchange rows."""

    UPDATE = 1  # before an update: is the mini-batch void, and are orders looked at after it?
    ORDERS = 2  # which orders are looked at
    HELD = 3  # whether each limb holds these
    ANSWER = 4  # what came of a command


class UpdateVote(NamedTuple):
    """A limb's vote before an update; a mini-batch that is void on one limb is void on all."""

    void: bool
    look: bool  # there are orders to be looked at after this mini-batch
    tells: bool = False  # all limbs tell each other which tensors they hold


Row = tuple[int, ...]
NO_ORDERS: Final = (0, 0)


def row(occasion: Occasion, *values: int) -> Row:
    """Make the row of one limb."""
    return (int(occasion), *values, *([0] * (LANES - 1 - len(values))))


def heard(occasion: Occasion, rows: Sequence[Row]) -> list[Row]:
    """Return what the limbs say, by limb. Raises JobFailed where a limb is at another place."""
    for limb, one in enumerate(rows):
        if one[0] != occasion:
            raise JobFailed(
                f"process {limb} of this worker is at another place of its script ({_word(one[0])}, where this one is "
                f"at {_word(occasion)}): all processes of a worker must take the same mini-batches and end them alike"
            )
    return [one[1:] for one in rows]


def _word(occasion: int) -> str:
    known = {one.value: one.name.lower() for one in Occasion}
    return f"its {known.get(occasion, occasion)}"


def update_of(rows: Sequence[Row]) -> UpdateVote:
    """Return what holds for all limbs."""
    said = heard(Occasion.UPDATE, rows)
    return UpdateVote(*(any(one[lane] for one in said) for lane in range(len(UpdateVote._fields))))


def newest_orders(rows: Sequence[Row]) -> tuple[int, int]:
    """Return term and version of the newest orders that any limb has heard."""
    return max((one[0], one[1]) for one in heard(Occasion.ORDERS, rows))


def all_hold(rows: Sequence[Row]) -> bool:
    """Tell whether all limbs hold the orders that were agreed on."""
    return all(one[0] for one in heard(Occasion.HELD, rows))


def failed_limb(rows: Sequence[Row]) -> int | None:
    """Return the first limb whose command has failed; None: all have succeeded."""
    return next((limb for limb, one in enumerate(heard(Occasion.ANSWER, rows)) if not one[0]), None)


def votes_of(rows: Sequence[Row]) -> set[Vote]:
    """Return the votes that the limbs' rings have agreed on: one, unless the limbs of another worker differ."""
    return {Vote(*one[1 : 1 + len(Vote._fields)]) for one in heard(Occasion.ANSWER, rows)}


def answer_row(answer: Input) -> Row:
    """Make the row of a limb whose command has come to this."""
    vote = answer.highest if isinstance(answer, VotesHeard) else ()
    return row(Occasion.ANSWER, int(not _fails(answer)), *vote)


def agreed(answer: Input, rows: Sequence[Row], *, sits: bool) -> Input:
    """Return what a limb's machine hears of its `answer`: where a command has failed on one limb, it has failed."""
    failed = failed_limb(rows) is not None
    if failed and not _fails(answer):
        return BatchVoid(ELSEWHERE) if sits and isinstance(answer, StateCopied | StateComes) else RingFailed(ELSEWHERE)
    if isinstance(answer, VotesHeard) and len(votes_of(rows)) > 1:
        return RingFailed(UNLIKE)
    return answer


def _fails(answer: Input) -> bool:
    return isinstance(answer, RingFailed | BatchVoid)
