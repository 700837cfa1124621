"""Scripts that do not do the same in a job's first mini-batch: each waits for what the others never come to.

Owns: finding that, and the words for it. Does not own: that the job ends by it (`edl.core.job.leader_machine`), nor
what follows of the same in a later step (`edl.core.job.deadlines`).

Before the first step a wait may take as long as a boot: one worker compiles, or fetches the data for all. But where all
members wait, not for the same, and nothing moves, none of them boots any more. No worker has trained well by its script
then, and another life of the job would come to the same.
"""

from __future__ import annotations

from edl.core.job.observations import Observations
from edl.protocol.record import Record

REMEDY = "all workers must call the same, also where a script goes by its rank"


def disagreement(record: Record, seen: Observations) -> str:
    """Say for people what each member of the first ring waits for, where that can never come; empty: it may."""
    generation, roster = record.generation, record.roster
    if len(roster) < 2 or any(seen.observation(one) is None for one in roster):
        return ""
    waits = {one: seen.awaits(one, generation) for one in roster}
    awaited = {what for what, _ in waits.values()}
    if len(awaited) < 2 or "" in awaited or not all(settled for _, settled in waits.values()):
        return ""
    if all(seen.step(one) for one in roster):  # each script has done the same as the others at least once
        return ""
    told = "; ".join(
        f"rank {rank} ({one}) waits for {waits[one][0]}, in step {seen.place(one)}" for rank, one in enumerate(roster)
    )
    return f"the workers' scripts do not do the same from the first mini-batch on: {told}. {REMEDY.capitalize()}"
