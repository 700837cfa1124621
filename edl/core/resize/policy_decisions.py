"""Rulings of the job's own policy, a guest of the job's machine: a job that only people size never comes by here.

Owns: what is done about a ruling: another size, another worker in a slow one's place, other shares of the batch. Does
not own: what the policy decides (`edl.policy`), nor how the size changes (`edl.core.resize.target_size`).

Where a slow worker is replaced, the new one comes first, so that no worker is missed in between; where the job has as
many as it may have already, the slow one goes first. What is under way is in the record, so any leader goes on with
it.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import UNSET

from edl import facts
from edl.core.data.lease_recut import lifted
from edl.core.job.leader_inputs import Ruled
from edl.core.job.leader_state import WorkingState
from edl.core.resize import scale_requests
from edl.core.resize.scale_requests import is_driven
from edl.core.resize.target_size import TargetSize
from edl.protocol.job_policy import Replacing
from edl.protocol.leader_messages import AskScale
from edl.protocol.record import OVER, Record, WorkerState


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
        record.sizing.replacing is not None
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
    under_way = record.sizing.replacing
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


class PolicyRulings:
    """`boot_s` is how long a replacement of a worker is waited for."""

    def __init__(self, working: WorkingState, sizing: TargetSize, boot_s: float) -> None:
        self._working = working
        self._sizing = sizing
        self._boot_s = boot_s
        self._replacing_since: float | None = None

    def rule(self, ruled: Ruled) -> None:
        """Carry out a decision of the job's policy, if it is not too late; the decision is told in any case."""
        working, record = self._working, self._working.record
        if record.state in OVER:
            return
        change = scale_requests.answer(AskScale(ruled.size), record)
        begun = begin(record, ruled.replace[0]) if ruled.replace else None
        able = begun is not None if ruled.replace else isinstance(change, scale_requests.Change)
        able = able and (not ruled.shares or working.ledgers.ledger is not None)
        act = ruled.act and able and record.plan is None and record.migration is None
        decided = facts.PolicyDecided(
            size=ruled.size,
            replace=ruled.replace or UNSET,
            reason=ruled.reason,
            act=act,
            shares=ruled.shares or UNSET,
            numbers=ruled.numbers,
        )
        working.tell(decided)
        working.change(ruling=ruled.reason)
        if act and begun is not None:
            self._replace(ruled.replace[0], begun)
        elif act and ruled.shares:
            working.ledgers.share_out(ruled.shares)
            working.keep_ledger(shares=ruled.shares, rebatch=lifted(working.record))
        elif act and not ruled.replace and isinstance(change, scale_requests.Change):
            self._sizing.take(AskScale(ruled.size), change, f"the policy wants a size of {ruled.size}")

    def go_on(self) -> None:
        """Go on with a replacement; give it up if its newcomer boots for too long, as each leader counts anew."""
        working, under_way = self._working, self._working.record.sizing.replacing
        if under_way is None:
            self._replacing_since = None
            return
        self._replacing_since = working.now if self._replacing_since is None else self._replacing_since
        match follows(working.record):
            case Swap():
                working.change(target=under_way.size)
                self._sizing.dismiss((under_way.worker,), "another one has come in its place")
            case Over():
                working.change(target=under_way.size, replacing=None)
            case NotYet() if working.now - self._replacing_since >= self._boot_s:
                self._give_up(under_way)
            case _:
                pass

    def _give_up(self, under_way: Replacing) -> None:
        """Keep the slow worker. A newcomer may be here by now, and about to enter: the job would be larger by it."""
        working = self._working
        working.change(target=under_way.size, replacing=None)
        reason = f"no other worker trains in the place of {under_way.worker} after {self._boot_s:g} s: it stays"
        working.tell(facts.PolicyDecided(size=under_way.size, reason=reason, act=False))
        self._sizing.dismiss(
            scale_requests.surplus(working.record, under_way.size), f"{under_way.worker} stays after all"
        )

    def _replace(self, worker: str, begun: BeginReplacing) -> None:
        working, record = self._working, self._working.record
        under_way, awaited = replacing(worker, record), record.arrivals + 1
        working.change(replacing=under_way, target=begun.target, awaited=awaited)
        working.durations.asked_at = working.now
        if begun.leave:
            self._sizing.dismiss((worker,), "another one comes in its place")
