"""Decide what follows from what the processes of one worker, its limbs, tell each other: all must decide alike.

A worker may be several processes, its limbs, each with a machine of its own (`edl.core.worker.worker_machine`). The
machines decide by what they hear; so limbs whose training threads hear the same, in the same order, decide the same.
Each row here is exchanged by all limbs at the same place of the same script.

Owns: the rows, what follows from those of all limbs, and the one status made of theirs. Does not own: how rows travel
(`edl.trainer.limb_agreement`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from msgspec.structs import replace

from edl.core.worker.agreement import Vote
from edl.core.worker.worker_inputs import BatchVoid, Input, RingFailed, StateComes, StateCopied, VotesHeard
from edl.errors import JobFailed
from edl.protocol.leader_messages import Phase
from edl.protocol.trainer_messages import CopiedPart, TrainerStatus

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
    said = heard(Occasion.UPDATE, rows)
    return UpdateVote(*(any(one[lane] for one in said) for lane in range(len(UpdateVote._fields))))


def newest_orders(rows: Sequence[Row]) -> tuple[int, int]:
    """Return term and version of the newest orders that any limb has heard."""
    return max((one[0], one[1]) for one in heard(Occasion.ORDERS, rows))


def all_hold(rows: Sequence[Row]) -> bool:
    return all(one[0] for one in heard(Occasion.HELD, rows))


def failed_limb(rows: Sequence[Row]) -> int | None:
    return next((limb for limb, one in enumerate(heard(Occasion.ANSWER, rows)) if not one[0]), None)


def votes_of(rows: Sequence[Row]) -> set[Vote]:
    """Return the votes that the limbs' rings have agreed on: one, unless the limbs of another worker differ."""
    return {Vote(*one[1 : 1 + len(Vote._fields)]) for one in heard(Occasion.ANSWER, rows)}


def answer_row(answer: Input) -> Row:
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


# Limbs take the same decisions, at moments that differ by little. So the least advanced limb stands for the worker: the
# leader learns that a worker has done something once all of its limbs have.


LEAST_FIRST: Final = (Phase.BROKEN, Phase.BOOTING, Phase.REHEARSING, Phase.READY, Phase.TRAINING)
OTHER_DATA: Final = "the processes of this worker ask for different data: call elastic_shard_generator() on all alike"

ENDED: Final = "had come to the end of its script"


def combined(statuses: Sequence[TrainerStatus]) -> TrainerStatus:
    """Return a single limb's status unchanged."""
    if len(statuses) == 1:
        return statuses[0]
    first, least = statuses[0], _least(statuses)
    asked = [one.data for one in statuses if one.data is not None]
    if len({repr(replace(one, epochs=0)) for one in asked}) > 1:  # one may have asked for its next epoch already
        least = replace(least, phase=Phase.FAILED, reason=OTHER_DATA)
    ended = [limb for limb, one in enumerate(statuses) if one.phase is Phase.DONE]
    if ended and least.phase is Phase.FAILED:
        least = replace(least, reason=f"{least.reason} (process {ended[0]} of this worker {ENDED})")
    newest_void = max((one.void for one in statuses if one.void), key=lambda void: void.generation, default=None)
    return replace(
        least,
        data=min(asked, key=lambda one: one.epochs) if len(asked) == len(statuses) else None,
        leaving=any(one.leaving for one in statuses),
        missed=max(one.missed for one in statuses),
        marked=_marked(statuses),
        diverged=next((one.diverged for one in statuses if one.diverged is not None), None),
        final=tuple(fingerprint for one in statuses for fingerprint in one.final) if least.phase is Phase.DONE else (),
        joined=max(one.joined for one in statuses),
        booted=all(one.booted for one in statuses),
        prepares=all(one.prepares for one in statuses),
        sends_state=all(one.sends_state for one in statuses),
        prepared=_prepared(statuses),
        offer=first.offer if all(one.offer for one in statuses) else 0,
        state_bytes=max(one.state_bytes for one in statuses),
        foreign=any(one.foreign for one in statuses),
        void=newest_void,
        whereabouts=next((one.whereabouts for one in statuses if one.whereabouts is not None), None),
        copied=combined_copy([one.copied for one in statuses]),
        figures=first.figures,
        heard_going=all(one.heard_going for one in statuses),
    )


def ends_worker(dead: TrainerStatus, *, others: bool) -> bool:
    """Tell whether the end of a process is its worker's: the others would wait for it. `others`: some live. Those are
    on their way to their good end where this one has come to its own.
    """
    return not others or dead.phase is not Phase.DONE


def _least(statuses: Sequence[TrainerStatus]) -> TrainerStatus:
    """Return the status of the least advanced limb, of several such the one that knows why. One that has failed counts
    first; one that has come to its end counts once all have.
    """
    failed = [one for one in statuses if one.phase is Phase.FAILED]
    at_work = [one for one in statuses if not one.over]
    if failed or not at_work:
        return (failed or list(statuses))[0]
    return min(at_work, key=lambda one: (one.generation, LEAST_FIRST.index(one.phase), one.reason == ELSEWHERE))


def _marked(statuses: Sequence[TrainerStatus]) -> tuple[int, int]:
    """Return the rebatching that all limbs know, and the furthest that any may have read."""
    number = min(one.marked[0] for one in statuses)
    return number, max(one.marked[1] for one in statuses if one.marked[0] == number)


def combined_copy(copies: Sequence[CopiedPart]) -> CopiedPart:
    """Join the copies of all limbs; a copy that one limb lacks counts as none."""
    least = min(copies, key=lambda one: one.number)
    if any(one.number != least.number for one in copies):
        return CopiedPart(least.number)
    failed = next((one for one in copies if one.failure), None)
    files = tuple(file for one in copies for file in one.files)
    return failed or CopiedPart(least.number, files, max(one.stall_ms for one in copies))


def _prepared(statuses: Sequence[TrainerStatus]) -> tuple[int, str]:
    """Return the newest ring that stands at all limbs, or that has failed one of them."""
    newest = max(one.prepared[0] for one in statuses)
    for one in statuses:
        if one.prepared[0] == newest and one.prepared[1]:
            return one.prepared
    return min(one.prepared for one in statuses)
