"""Find the member of a broken ring that may be gone whole, trainer and daemon: its daemon's address is to be probed.

A ring does not break by itself. Where a trainer has died alone, its daemon has said so. Else the member that has not
told of the break is the one to ask for; and where its host says that no process listens at its daemon's address, it
is gone, long before its session ends. One that computes on, or is slow to tell, has a daemon that listens.

Owns: who is asked for. Does not own: asking (`edl.daemon.roll_caller`), nor what follows
(`edl.core.job.leader_machine`).
"""

from __future__ import annotations

from typing import Final

from edl.core.job.observations import Observations
from edl.protocol.record import OVER, Identity, Record, WorkerState

MOST: Final = 16  # of a large ring, most members have just not told yet


def silent(record: Record, seen: Observations) -> tuple[Identity, ...]:
    """Return the members to probe: none if a known loss may explain the break, as a daemon may come back."""
    if not seen.broken or record.state in OVER:
        return ()
    members = {member.identity.id: member for member in record.members}
    broken = [worker for worker in seen.broken if worker in members]
    if not broken:
        return ()
    generation = max(seen.generation(worker) for worker in broken)
    roster = _roster(record, generation)
    if any(worker not in members for worker in roster):
        return ()
    quiet = [
        members[worker].identity
        for worker in roster
        if members[worker].state is not WorkerState.DONE and not seen.breaks(worker, generation)
    ]
    return tuple(quiet) if len(quiet) <= MOST else ()


def _roster(record: Record, generation: int) -> tuple[str, ...]:
    if record.generation == generation:
        return record.roster
    plans = [*record.superseded, *([record.plan] if record.plan is not None else [])]
    return next((plan.roster for plan in plans if plan.generation == generation), ())
