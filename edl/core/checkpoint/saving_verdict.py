"""Decide whether a saving can still succeed, from the record and the observations.

A saving needs a part of each member of one ring, all copied after the same step there: so all of them have applied that
step, which is stable, and all have the same model. The ring itself may be gone by then: what is copied can be stored
whatever follows. So a saving outlives a switch, planned or forced, once all have come to its step.

A planned switch is announced later than a saving that is under way, and so is its step, as a rule. Where it is not, as
steps have become longer meanwhile or the workers hold at a mark, the saving is given up, and not the switch put off:
people wait for a switch, workers may be about to leave with it, and a saving costs nothing to be begun again.

Owns: when a saving cannot come about any more. Does not own: what follows from it (`edl.core.checkpoint.checkpoints`).
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass

from edl.core.data.sample_ledger import Ledger
from edl.core.job.observations import Observations
from edl.protocol.checkpoint_record import Saving
from edl.protocol.leader_messages import Phase
from edl.protocol.record import Member, Record, WorkerState


@dataclass(frozen=True, slots=True)
class SavingVerdict:
    record: Record
    saving: Saving
    members: Mapping[str, Member]  # of the record, by id
    seen: Observations
    stored: Container[str]  # those whose parts are known to be durable
    ledger: Ledger | None


def why_not(now: SavingVerdict) -> str:
    if now.saving.remnants:  # they are no members, and nothing of them changes any more
        failed = (_failure_of(worker, now) for worker in now.saving.roster)
        return next(filter(None, failed), "")
    return _overtaken(now) or next(_lacking(now), "")


def _overtaken(now: SavingVerdict) -> str:
    """Tell why the ring will not reach the saving's step, though nothing is wrong with any member."""
    record, saving, plan = now.record, now.saving, now.record.plan
    if record.generation != saving.generation:
        return ""
    if plan is not None and plan.after_step is not None and plan.after_step < saving.after_step:
        return f"the switch to generation {plan.generation} comes before its step"
    if now.ledger is not None and now.ledger.covered_step < saving.after_step:
        return "the data ends before its step, as leases were cut anew"
    return ""


def _lacking(now: SavingVerdict) -> Iterator[str]:
    for worker in now.saving.roster:
        if worker not in now.stored and (why := _no_part_of(worker, now)):
            yield why


def _failure_of(worker: str, now: SavingVerdict) -> str:
    failure = now.seen.save_failed(worker, now.saving.number)
    return f"{worker} has no part to give: {failure}" if failure else ""


def _no_part_of(worker: str, now: SavingVerdict) -> str:
    saving, seen = now.saving, now.seen.observation(worker)
    if failure := _failure_of(worker, now):
        return failure
    if worker not in now.members:
        return f"{worker} was gone before its part was durable"
    if now.members[worker].state is WorkerState.DONE:  # a daemon tells of the end once the part is stored
        return f"the script of {worker} ended before its part was durable"
    if seen is None or seen.step >= saving.after_step:
        return ""
    if seen.generation > saving.generation or seen.phase is Phase.BROKEN:
        return f"the ring of {worker} was over before its step"
    return ""
