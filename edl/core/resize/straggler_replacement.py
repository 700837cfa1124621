"""Replace a slow worker by another: a pure decision from the record of the job.

The new one comes first, so that no worker is missed in between; where the job has as many as it may have already, the
slow one goes first. What is under way is in the record, so any leader goes on with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from edl.core.resize.scale_requests import is_driven
from edl.protocol.job_policy import Replacing
from edl.protocol.record import Record, WorkerState


@dataclass(frozen=True, slots=True)
class BeginReplacing:
    """Set the size to `target` meanwhile; `leave`: the slow worker leaves at once."""

    target: int
    leave: bool


@dataclass(frozen=True, slots=True)
class Swap:
    """The new one trains: the slow one may go."""


@dataclass(frozen=True, slots=True)
class NotYet:
    """The slow one trains, and the new one does not yet."""


@dataclass(frozen=True, slots=True)
class Over:
    """The slow one is gone: the job has its size again, or waits for the last one to come."""


def begin(record: Record, worker: str) -> BeginReplacing | None:
    """Return how to replace `worker`; None: not now, or not at all."""
    states = {member.identity.id: member.state for member in record.members}
    if (
        record.replacing is not None
        or record.migration is not None
        or is_driven(record)
        or states.get(worker) is not WorkerState.TRAINING
    ):
        return None
    if len(record.roster) < 2 or record.plan is not None:
        return None
    if not record.limits.maximum or record.target < record.limits.maximum:
        return BeginReplacing(record.target + 1, leave=False)
    if record.target - 1 < max(record.limits.minimum, 1):
        return None
    return BeginReplacing(record.target - 1, leave=True)


def follows(record: Record) -> Swap | NotYet | Over | None:
    """Return the next act of the replacement under way; None: wait for a switch, or for the slow worker's leaving."""
    under_way = record.replacing
    if under_way is None:
        return None
    states = {member.identity.id: member.state for member in record.members}
    if under_way.worker not in states:
        return Over()
    if states[under_way.worker] is not WorkerState.TRAINING or record.plan is not None:
        return None
    in_ring = sum(states.get(worker) is WorkerState.TRAINING for worker in record.roster)
    return Swap() if in_ring > under_way.size else NotYet()


def replacing(worker: str, record: Record) -> Replacing:
    return Replacing(worker, record.target)
