"""Choose the time from one checkpoint to the next, where the job is to do that by itself: a pure decision.

Much is lost to faults if checkpoints are rare, as what was trained since the newest one is trained again; and much to
checkpoints, if they are many. Both together are least at Young's interval (1974): the square root of 2 M C, where C is
what training loses to one checkpoint, and M the mean time from one fault to the next.

C is what was seen of the last few: by how much their steps came later than those when nothing is saved
(`edl.core.checkpoint.step_speed`), but no less than for how long trainers stood. Its middle value counts, so that one
evaluation that fell together with a checkpoint does not. M is the time trained over the faults: workers lost in this
life, and the lives before. Time trained is that of the steps which count, of all lives, so that each leader says the
same; and as if a fault had been seen at the end of one hour more, so that M has a value from the beginning.

Owns: this decision. Does not own: what is due at a moment (`edl.core.checkpoint.due_times`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from edl.protocol.checkpoint_record import Auto, Cost
from edl.protocol.record import Record

KEPT: Final = 5  # costs, of the newest checkpoints
MOST_S: Final = 3600.0  # however rare faults are
LONGEST_S: Final = 6 * 3600.0  # however much a checkpoint costs: a job that is to be saved is
WRITING: Final = 2.0  # no more than half of the time something is being written


@dataclass(frozen=True, slots=True)
class Interval:
    seconds: float
    why: str  # in words


def interval_of(record: Record, step: int, step_time_s: float) -> Interval | None:
    """Return the interval of a job at `step` of this life; None: the job does not choose by itself."""
    policy = record.job_policy.checkpointing
    if policy.auto is None:
        return None
    base = 0 if record.resumed is None else record.resumed.step
    fault_s = mean_fault_s(policy.auto, (base + step) * step_time_s, record.losses + policy.life - 1)
    return chosen(policy.auto, record.save_costs, fault_s)


def mean_fault_s(auto: Auto, trained_s: float, faults: int) -> float:
    return (max(0.0, trained_s) + auto.fault_s) / (faults + 1)


def chosen(auto: Auto, costs: Sequence[Cost], fault_s: float) -> Interval:
    if not costs:
        return Interval(auto.least_s, "until it is known what one costs")
    cost_s = cost(costs)
    young_s = math.sqrt(2 * fault_s * cost_s)
    bounds = (
        (auto.least_s, "the shortest that is chosen"),
        (WRITING * took(costs), "as it takes half of that until one is durable"),
        (min(young_s, MOST_S), "the longest that is chosen" if young_s > MOST_S else "as often as faults ask for"),
        (cost_s / auto.overhead, f"as more would cost over {100 * auto.overhead:g}% of the time"),
    )
    seconds, why = max(bounds, key=lambda bound: bound[0])
    if seconds > LONGEST_S:
        seconds, why = LONGEST_S, f"the longest in any case, though it costs over {100 * auto.overhead:g}% of the time"
    return Interval(seconds, f"{why}: one costs {_told(cost_s)}, and one fault came in {_told(fault_s)}")


def cost(costs: Sequence[Cost]) -> float:
    """Return the training time lost to one checkpoint, in seconds."""
    return max(0.0, median(one.stall_s for one in costs), median(_lost(one) for one in costs))


def took(costs: Sequence[Cost]) -> float:
    """Return the time until a checkpoint is durable, in seconds."""
    return median([one.took_s for one in costs if one.took_s is not None] or [0.0])


def _lost(one: Cost) -> float:
    return one.stall_s if one.lost_s is None else one.lost_s


def _told(seconds: float) -> str:
    return (
        f"{1000 * seconds:.0f} ms"
        if seconds < 1
        else f"{seconds:.0f} s"
        if seconds < 300
        else f"{seconds / 60:.0f} min"
    )
