"""Combine the statuses of a worker's processes, its limbs, into one.

Owns: which limb counts for each fact. Does not own: the statuses (`edl.core.worker.worker_machine`), nor what the
daemon makes of the whole (`edl.core.worker.observed_trainer`).

Limbs take the same decisions, at moments that differ by little. So the least advanced limb stands for the worker: the
leader learns that a worker has done something once all of its limbs have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from edl.core.worker.limb_votes import ELSEWHERE
from edl.protocol.leader_messages import Phase
from edl.protocol.trainer_messages import CopiedPart, TrainerStatus

LEAST_FIRST: Final = (Phase.BROKEN, Phase.BOOTING, Phase.REHEARSING, Phase.READY, Phase.TRAINING)
OTHER_DATA: Final = "the processes of this worker ask for different data: call elastic_shard_generator() on all alike"

ENDED: Final = "had come to the end of its script"


def combined(statuses: Sequence[TrainerStatus]) -> TrainerStatus:
    """Return the status of the worker. That of a single limb is the worker's as it is."""
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
    """Return the copy of the worker: those of all limbs together. One that a limb has not is none."""
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
