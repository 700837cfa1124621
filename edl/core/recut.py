"""Batches of another size, put in force without stopping: what is leased is cut anew beyond what pipelines have read.

A switch changes the batches of its workers, but what survivors hold by then was leased in those of before, and their
pipelines may have read far into it. So once the new ring trains:

1. the leader sets a *mark*, a step that nobody is at yet. Each worker hands out nothing beyond it, or beyond what it
   has handed out already, and tells that step;
2. when all have told, what is leased beyond the last of these steps is taken back and leased anew.

If the word arrives in time, nobody waits at the mark. While one is set, a worker that reaches it waits; so a mark is
lifted as soon as anything else is planned, or a worker's script has ended. Then all is as before, and the leases of
before are used up in their own batches.

Owns: what follows. Does not own: taking leases back (`edl.core.ledger`), keeping to a mark (`edl.runtime.feed`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edl.core.ledger import Ledger
from edl.core.sightings import Sightings
from edl.protocol.job import Record


@dataclass(frozen=True, slots=True)
class SetMark:
    """Nobody is to read beyond this step."""

    step: int


@dataclass(frozen=True, slots=True)
class Lift:
    """It comes to nothing."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Nobody has read beyond this step."""

    step: int


def follows(
    record: Record, ledger: Ledger | None, seen: Sightings, mark: Callable[[], int]
) -> SetMark | Cut | Lift | None:
    """What is to be done about leases in batches of before. `mark`: a step that the word arrives before."""
    if ledger is None or not record.generation:
        return None
    under_way = record.recut
    train = all(seen.trains(worker, record.generation) for worker in record.roster)
    if record.plan is not None or not train:
        return None if under_way is None else Lift()
    if under_way is None:
        if ledger.outdated_until <= ledger.step or ledger.outdated_until <= (step := mark()):
            return None
        return SetMark(step)
    told = [seen.marked(worker) for worker in record.roster]
    if any(number != under_way.number for number, _ in told):
        return None
    return Cut(min(max(step for _, step in told), ledger.covered_step))
