"""Guess whether the members of a ring make no steps: a preempted job is then saved where they are, not some steps
ahead.

Each tells its steps at once from when it has heard that the job is to go. What was heard before may be old, so nothing
is guessed from it.

They stand in an evaluation of the script's, with a pipeline that waits for samples, while the next step is compiled, or
in a step that takes very long. What each has is that of its newest step, and stays so until its next update.

A wrong guess costs a try: a worker that goes on meanwhile has no part to give, and another saving is announced.

Owns: the guess. Does not own: what follows from it (`edl.core.checkpoint.checkpoints`, `preempting`).
"""

from __future__ import annotations

from typing import Final

from edl.core.job.lead_times import LeadTimes, going_report_period_s, report_period_s

STEPS: Final = 2  # a step that takes longer than so many usual ones is taken for something else
TRIES: Final = 3  # so many should fit into the deadline


def stand(
    age_s: float, *, asked_s: float, step_time_s: float, deadline_s: float, members: int, lead_times: LeadTimes
) -> bool | None:
    """`age_s` ago the newest step was seen, and `asked_s` ago they were asked to go. None: it seems so, and they have
    yet to tell. A step that is announced ahead comes two steps after the newest one.
    """
    least_s = lead_times.stand_s + going_report_period_s(members)
    is_long = step_time_s >= 2 * least_s and TRIES * step_time_s > deadline_s
    longest_s = min(STEPS * step_time_s, deadline_s / TRIES)
    if asked_s < least_s:
        seems_so = is_long or age_s >= max(lead_times.notice_s + report_period_s(members), longest_s)
        return None if seems_so else False
    return is_long or age_s >= max(least_s, longest_s)
