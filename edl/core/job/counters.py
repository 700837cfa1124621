"""Update a job's tally from events and from the time that passes.

Owns: the arithmetic. Pure: facts, records and times are arguments. Does not own: when it is done (each change of the
record, `edl.core.job.leader_state`), nor the tally's form (`edl.protocol.tally`).

A number that was served once must never shrink. So a pause, which is known only when its switch is over and was counted
as training until then, is not taken back: it is owed, and the next seconds of training pay for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec

from edl import facts
from edl.facts import Fact
from edl.protocol.record import OVER, JobState, Record
from edl.protocol.tally import CHECKPOINT, SWITCH, Doing, Growth, Tally

N = TypeVar("N", int, float)
PLAIN: Final[Mapping[type[Fact], str]] = {
    facts.WorkerUnfit: "unfit",
    facts.BatchVoided: "voided",
    facts.WorkersDiverged: "diverged",
    facts.PolicyDecided: "decisions",
    facts.CheckpointFailed: "checkpoints_failed",
}
set_ = msgspec.structs.replace


def doing_of(record: Record) -> Doing:
    if record.state in OVER:
        return Doing.OVER
    if not record.generation:
        return Doing.STARTING
    broken = record.plan is not None and record.plan.after_step is None
    voided = record.state is not JobState.STARTING and record.generation in record.voided.values()
    return Doing.FAULT if broken or voided else Doing.TRAINING


def advanced(tally: Tally, wall: float) -> Tally:
    """Count nothing where the clock goes back, as another host's may."""
    if not tally.at or wall <= tally.at:
        return tally
    span = wall - tally.at
    if tally.doing is Doing.OVER:
        return set_(tally, at=wall)
    if tally.doing is not Doing.TRAINING:
        return set_(tally, at=wall, bad_s=_more(tally.bad_s, tally.doing.value, span))
    paid = min(span, tally.owed_s)
    return set_(tally, at=wall, good_s=tally.good_s + span - paid, owed_s=tally.owed_s - paid)


def certain(durable: Tally, decided: Tally, wall: float) -> Tally:
    """Return the tally that is safe to serve at `wall` while a decision is being written: the shorter one of each span.

    If the write fails, the next leader goes on from `durable`; else from `decided`. Neither holds less than this tally.
    """
    known = advanced(durable, wall)
    if decided is durable:
        return known
    coming = advanced(decided, wall)
    bad_s = {cause: min(span, coming.bad_s.get(cause, 0.0)) for cause, span in known.bad_s.items()}
    return set_(known, good_s=min(known.good_s, coming.good_s), bad_s=bad_s)


def followed(tally: Tally, record: Record, wall: float) -> Tally:
    doing = doing_of(record)
    tally = advanced(tally, wall)
    return tally if doing is tally.doing else set_(tally, doing=doing)


def counted(tally: Tally, fact: Fact, wall: float) -> Tally:
    tally = advanced(tally, wall)
    if field := PLAIN.get(type(fact)):
        return set_(tally, **{field: getattr(tally, field) + 1})
    match fact:
        case facts.JobStarted():
            tally = set_(tally, at=wall)
        case facts.SizeAsked():
            tally = set_(tally, asked_more=tally.asked_more + max(0, fact.size - fact.before))
        case facts.Scaled():
            tally = _scaled(tally, fact)
        case facts.WorkerLost():
            tally = set_(tally, lost=_more(tally.lost, fact.cause, 1))
        case facts.CheckpointDurable():
            tally = _saved(tally, fact, wall)
        case _:  # the others are of no number
            pass
    return tally


def _scaled(tally: Tally, fact: facts.Scaled) -> Tally:
    """The time that a broken ring has cost is counted by what the job was doing; a planned switch's is its pause."""
    growth = growth_of(fact.before, fact.after, forced=fact.forced)
    pause_s = (fact.pause_ms or 0.0) / 1000
    tally = set_(tally, scalings=_more(tally.scalings, growth.value, 1), pause_s=tally.pause_s + pause_s)
    return tally if fact.forced else _held_up(tally, SWITCH, pause_s)


def growth_of(before: int, after: int, *, forced: bool) -> Growth:
    if forced:
        return Growth.FAULT
    if before == after:
        return Growth.REPLACE
    return Growth.GROW if after > before else Growth.SHRINK


def _saved(tally: Tally, fact: facts.CheckpointDurable, wall: float) -> Tally:
    stall_s = fact.stall_ms / 1000
    saved = set_(
        tally,
        checkpoints=tally.checkpoints + 1,
        checkpoint_bytes=tally.checkpoint_bytes + fact.bytes,
        checkpoint_stall_s=tally.checkpoint_stall_s + stall_s,
        checkpointed_at=wall,
    )
    return _held_up(saved, CHECKPOINT, stall_s)


def _held_up(tally: Tally, cause: str, span_s: float) -> Tally:
    return set_(tally, bad_s=_more(tally.bad_s, cause, span_s), owed_s=tally.owed_s + span_s)


def _more(counts: Mapping[str, N], name: str, more: N) -> dict[str, N]:
    return {**counts, name: counts.get(name, 0) + more}
