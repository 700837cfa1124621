"""Cut leases anew beyond the steps that pipelines have read, without stopping.

What survivors of a switch hold by then was leased for the workers and the batches of before: newcomers would have
nothing of it, and take part without samples of their own until it is used up. So:

1. the leader sets a *mark*, a step that no worker is at yet. Each worker hands out nothing beyond it, or beyond what it
   has handed out already and the step that it works on, and tells that step;
2. when all have told, what is leased beyond the last of these steps is taken back and leased anew.

**Before a switch** that would leave a member without samples, the mark comes first, and the plan once all have told: it
has the leases of all, cut anew. The switch is after the first of the steps told, so that none can be beyond. The mark
holds as long as such a plan may come into force; a worker that comes to it waits at the end of that mini-batch, where
rings change. Where not all tell in time (one hangs, say), the switch is planned as if there were no mark.

**Where a ring broke**, the mark comes with the plan of the next one: no survivor reads on, each tells how far it has
read before it comes to that ring, and what lies beyond is leased anew once the step is known that it begins after.

**In a ring that trains**, where a switch could not (not all had told), or where the batch is shared out otherwise,
the same follows it. Such a mark is lifted as soon as anything else is planned, or a worker's script has ended. Then all
is as before, and the leases of before are used up in their own batches.

If the word arrives in time, no worker waits at a mark.

Owns: what follows. Does not own: taking leases back (`edl.core.data.sample_ledger`), keeping to a mark
(`edl.core.worker.lease_buffer`), when a switch needs one (`edl.core.data.lease_grants`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from edl.core.data.sample_ledger import Ledger
from edl.core.job.observations import Observations
from edl.protocol.job_policy import Rebatch
from edl.protocol.record import Record


@dataclass(frozen=True, slots=True)
class SetMark:
    """Forbid workers to read beyond this step."""

    step: int


@dataclass(frozen=True, slots=True)
class Lift:
    """Drop the mark without a cut."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Cut leases after this step, which no worker has read beyond."""

    step: int


def follows(
    record: Record, ledger: Ledger | None, seen: Observations, mark: Callable[[], int]
) -> SetMark | Cut | Lift | None:
    """Return the next act about leases in earlier batches. `mark`: returns a step still ahead of all workers."""
    under_way = record.sizing.rebatch
    if ledger is None or not record.generation or (under_way is not None and under_way.planned):
        return None  # a plan's holds until its ring stands, or never will
    train = all(seen.trains(worker, record.generation) for worker in record.roster)
    idle = record.plan is not None or not train or ledger.outdated_until <= ledger.step
    if under_way is None:
        return None if idle or ledger.outdated_until <= (step := mark()) else SetMark(step)
    if idle:
        return Lift()
    told = told_by(record.roster, under_way, seen)
    return None if told is None else Cut(min(max(told), ledger.covered_step))


def told_by(roster: Iterable[str], rebatch: Rebatch, seen: Observations) -> list[int] | None:
    """Return up to which step each of `roster` may have read; None until all have told."""
    told = [seen.marked(worker) for worker in roster]
    return None if any(number != rebatch.number for number, _ in told) else [step for _, step in told]


def lifted(record: Record) -> Rebatch | None:
    """Return the mark that survives another decision: only a planned one does."""
    return record.sizing.rebatch if record.sizing.rebatch is not None and record.sizing.rebatch.planned else None
