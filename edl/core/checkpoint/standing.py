"""Whether the members of a ring stand: a job that is to go is then saved where they are, and not some steps ahead.

They stand in an evaluation of the script's, with a pipeline that waits for samples, while the next step is compiled, or
in a step that takes very long. What each has is that of its newest step, and stays so until its next update.

A wrong guess costs a try: a worker that goes on meanwhile has no part to give, and another saving is announced.

Owns: the guess. Does not own: what follows from it (`edl.core.checkpoint.checkpoints`, `preempting`).
"""

from __future__ import annotations

from typing import Final

from edl.core.job.lead_times import REPORT_S, LeadTimes, report_period_s

STEPS: Final = 2  # a step that takes longer than so many usual ones is taken for something else
TRIES: Final = 3  # so many should fit into the deadline


def stand(age_s: float, *, step_time_s: float, deadline_s: float, members: int, lead_times: LeadTimes) -> bool:
    """`age_s` ago the newest step was seen. A step that is announced ahead comes two steps after that."""
    least_s = lead_times.stand_s + report_period_s(members) - REPORT_S
    if step_time_s >= 2 * least_s and TRIES * step_time_s > deadline_s:
        return True
    return age_s >= max(least_s, min(STEPS * step_time_s, deadline_s / TRIES))
