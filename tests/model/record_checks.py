"""Check the records that leaders write, one after the other, and the events that go with them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NoReturn

from edl.core.job.leader_inputs import Command, Tell
from edl.events import Kind
from edl.protocol.record import OVER, JobState, Record

ENDS = {
    JobState.FINISHED: Kind.JOB_FINISHED,
    JobState.FAILED: Kind.JOB_FAILED,
    JobState.PREEMPTED: Kind.JOB_PREEMPTED,
}

Complain = Callable[[str, str], NoReturn]


class RecordChecks:
    """Checks of one job's records. `violated`: called when an invariant does not hold."""

    def __init__(self, violated: Complain) -> None:
        self._violated = violated
        self._were_members: set[str] = set()

    def durable(self, before: Record, record: Record) -> None:
        if record.members is before.members:
            return
        after = {member.identity.id for member in record.members}
        if again := after & self._were_members:
            self._violated("ids", f"{sorted(again)} are members again; ids are used once")
        self._were_members |= {member.identity.id for member in before.members} - after
        places = [(member.identity.host, member.local_rank) for member in record.members]
        if len(set(places)) != len(places):
            self._violated("local ranks", f"two members have the same: {sorted(places)}")

    def told(self, before: Record, record: Record, commands: Iterable[Command]) -> None:
        """Check that a record's events are written with it."""
        kinds = {command.fact.kind for command in commands if isinstance(command, Tell)}
        if missing := set(due(before, record)) - kinds:
            self._violated("events", f"version {record.version} was written without {sorted(missing)}")


def due(before: Record, record: Record) -> Collection[Kind]:
    """Return the events without which a reader would not know what has changed."""
    found: list[Kind] = []
    if record.state in OVER and before.state not in OVER:
        found.append(ENDS[record.state])
    elif record.plan is not None and (before.plan is None or record.plan.generation != before.plan.generation):
        found.append(Kind.SWITCH_SCHEDULED)
    if record.arrivals != before.arrivals:
        found.append(Kind.WORKER_JOINING)
    if record.checkpoints.preemption is not None and before.checkpoints.preemption is None:
        found.append(Kind.PREEMPT_ASKED)
    if record.checkpoints.saves > before.checkpoints.saves:
        found.append(Kind.CHECKPOINT_BEGUN)
    if before.checkpoints.saving is not None and (
        record.checkpoints.saving is None or record.checkpoints.saving.number != before.checkpoints.saving.number
    ):
        durable = (
            record.checkpoints.saved is not None and record.checkpoints.saved.number == before.checkpoints.saving.number
        )
        found.append(Kind.CHECKPOINT_DURABLE if durable else Kind.CHECKPOINT_FAILED)
    if record.migrations > before.migrations:
        found.append(Kind.MIGRATING)
    if ended := [one for one in record.migrated if one not in before.migrated]:
        found += [Kind.MIGRATION_FAILED if one.failure else Kind.MIGRATED for one in ended]
    unfit = {one.worker for one in record.trials.unfit}
    gone = [one.worker for one in record.gone if one.reason and one not in before.gone]
    found += {Kind.WORKER_UNFIT if worker in unfit else Kind.WORKER_LOST for worker in gone}
    return found
