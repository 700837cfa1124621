"""Measure how fast a ring trains and how much a checkpoint slows it down, as far as reports of steps show.

While nothing is saved, the time that a step takes is looked at in short stretches, of which the middle one counts: an
evaluation or a pause makes one of them long, and not the others. From the moment when a saving is announced until all
its parts are durable, steps come later than that if copies and writes hold up training. Reports come at any point of a
step, at the beginning of that stretch as at its end; so a single figure is off by up to a step, either way, and the
middle one of several is not.

Owns: these stretches, and the guess whether members make no steps. Does not own: what follows from them
(`edl.core.checkpoint.due_times`, `edl.core.checkpoint.checkpoints`, `edl.core.checkpoint.preemption`).
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Final

from edl.core.job.lead_times import LeadTimes, going_report_period_s, report_period_s

STRETCHES: Final = 15

Seen = tuple[int, float]  # the newest step, and when it was reported


class SavingPace:
    """Step times of the present ring, and the delay by a saving. Each leader measures anew.

    `stretch_s`: the shortest stretch that is measured.
    """

    def __init__(self, stretch_s: float) -> None:
        self._stretch_s = stretch_s
        self._generation = 0
        self._step_times_s: deque[float] = deque(maxlen=STRETCHES)
        self._since: Seen | None = None  # the stretch that nothing is saved in
        self._begun: Seen | None = None  # the saving

    @property
    def step_time_s(self) -> float | None:
        return median(self._step_times_s) if self._step_times_s else None

    def look(self, generation: int, seen: Seen) -> None:
        self._follow(generation)
        self._begun = None
        if self._since is None:
            self._since = seen
            return
        steps, seconds = seen[0] - self._since[0], seen[1] - self._since[1]
        if steps > 0 and seconds >= self._stretch_s:
            self._step_times_s.append(seconds / steps)
            self._since = seen

    def begin(self, generation: int, seen: Seen) -> None:
        self.look(generation, seen)
        self._since, self._begun = None, seen

    def end(self, generation: int, seen: Seen) -> float | None:
        """Return by how many seconds the steps came later than without the saving, once all its parts are durable.

        None: not known.
        """
        self._follow(generation)
        begun, self._begun = self._begun, None
        step_time_s = self.step_time_s
        if begun is None or step_time_s is None:
            return None
        return (seen[1] - begun[1]) - (seen[0] - begun[0]) * step_time_s

    def _follow(self, generation: int) -> None:
        if generation != self._generation:
            self._generation = generation
            self._step_times_s.clear()
            self._since = self._begun = None


STEPS: Final = 2  # a step that takes longer than so many usual ones is taken for something else
TRIES: Final = 3  # so many should fit into the deadline


def stand(
    age_s: float, *, asked_s: float, step_time_s: float, deadline_s: float, members: int, lead_times: LeadTimes
) -> bool | None:
    """Guess whether the members of a ring make no steps: a preempted job is then saved where they are, not some steps
    ahead.

    They stand in an evaluation of the script's, with a pipeline that waits for samples, while the next step is
    compiled, or in a step that takes very long. What each has is that of its newest step, and stays so until its next
    update. A wrong guess costs a try: a worker that goes on meanwhile has no part to give, and another saving is
    announced.

    `age_s` ago the newest step was seen, and `asked_s` ago they were asked to go: from when a member has heard that, it
    tells its steps at once. What was heard before may be old, so nothing is guessed from it. None: it seems so, and
    they have yet to tell. A step that is announced ahead comes two steps after the newest one.
    """
    least_s = lead_times.stand_s + going_report_period_s(members)
    is_long = step_time_s >= 2 * least_s and TRIES * step_time_s > deadline_s
    longest_s = min(STEPS * step_time_s, deadline_s / TRIES)
    if asked_s < least_s:
        seems_so = is_long or age_s >= max(lead_times.notice_s + report_period_s(members), longest_s)
        return None if seems_so else False
    return is_long or age_s >= max(least_s, longest_s)
