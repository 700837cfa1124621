"""Choose over how many steps newcomers get the others' state, beside computation.

A state that is longer on its way than a step would hold up the update of that step, at all members. So it goes in
portions, one beside each of the first steps, and what has come is kept equal by the updates that all make. Until the
last portion has come, a newcomer counts for nothing: it has no samples, and its weight is zero.

Owns: the number of steps. Does not own: what is of which portion (`edl.core.worker.state_portions`, each framework),
nor that newcomers have no samples meanwhile (`edl.core.data.sample_ledger`).
"""

from __future__ import annotations

import math
from typing import Final

from edl.core.job.lead_times import LeadTimes

BYTES_A_SECOND: Final = 5e8  # what one connection has carried on one host beside training (docs/benchmarks.md)
BESIDE: Final = 0.5  # of a step that is not before its update
LEAST_BYTES: Final = 1 << 24  # of a portion: less is through in no time, and each costs its first word


def steps(state_bytes: int, step_time_s: float, lead_times: LeadTimes, step_timeout_s: float) -> int:
    """Return the number of steps, at least one.

    While they last no more is leased, and the newcomers have a time-out of their own: so a large state over short steps
    goes in larger portions, which the others wait for.
    """
    if step_time_s <= 0:
        return 1
    portion = max(LEAST_BYTES, BESIDE * step_time_s * BYTES_A_SECOND)
    most = min(lead_times.lease_steps(step_time_s) // 2, int(step_timeout_s / step_time_s))
    return max(1, min(math.ceil(state_bytes / portion), most))
