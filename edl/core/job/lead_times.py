"""Times by which a leader decides ahead: leases that outlast its absence, a switch step that comes after its
announcement.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

FIRST_STEPS = 64  # leased before any worker knows how long a step takes
FEWEST_STEPS = 16
MORE_AT = 0.6  # of what is leased ahead: when no more than that is left, more is granted
LONGEST_HOLD_S = 5.0
REPORT_S = 1.0
REPORTS_A_SECOND = 250  # of mere progress, to one leader: the more workers there are, the more seldom each reports


def report_period_s(workers: int) -> float:
    """Upper bound of a reported step's age, in seconds."""
    return max(REPORT_S, workers / REPORTS_A_SECOND)


def going_report_period_s(workers: int) -> float:
    """Upper bound of a reported step's age in a preempted job, whose leader must know if members make steps."""
    return report_period_s(workers) / 10


@dataclass(frozen=True, slots=True)
class LeadTimes:
    """Bounds in seconds, derived from the user's session time-out (I12)."""

    lease_s: float  # with leases so far ahead a change of leader goes unnoticed (I9, I11)
    notice_s: float  # time for orders to reach every trainer
    loss_s: float  # a ring fails its members so much sooner than the word comes that one of them is gone
    hold_s: float  # a daemon's call for orders is held no longer: so late it hears of what does not press

    @property
    def torn_s(self) -> float:
        """Seconds from when some workers were seen to miss a switch until the others count as having made it."""
        return 3 * self.notice_s

    @property
    def stand_s(self) -> float:
        """Seconds without a report of a step until members of a preempted job count as making none."""
        return self.notice_s

    @property
    def roll_call_s(self) -> float:
        """Seconds for the daemons of a next ring to find each other, beside training; then some are left out."""
        return self.hold_s + 3 * self.notice_s

    @property
    def more_at_s(self) -> float:
        return MORE_AT * self.lease_s

    @classmethod
    def of(cls, session_timeout_s: float) -> LeadTimes:
        hold_s = min(LONGEST_HOLD_S, session_timeout_s / 2)
        return cls(lease_s=2.5 * session_timeout_s, notice_s=0.3, loss_s=0.1, hold_s=hold_s)

    def presses(self, left_s: float) -> bool:
        """Tell whether workers that run dry in `left_s` must hear of more leases before their calls for orders end."""
        return left_s < 1.5 * self.hold_s

    def lease_steps(self, step_time_s: float) -> int:
        if step_time_s <= 0:
            return FIRST_STEPS
        return max(FEWEST_STEPS, math.ceil(self.lease_s / step_time_s))

    def fewest_steps(self, step_time_s: float) -> int:
        """Number of steps at which more leases are granted.

        A worker that hears of them only when its call ends has enough until then, and for a session time-out without
        any leader.
        """
        return int(MORE_AT * self.lease_steps(step_time_s))

    def switch_step(
        self, newest_step: int, age_s: float, step_time_s: float, words: int = 1, took_s: float = 0.0
    ) -> int:
        """Return a step that no worker has committed when the word arrives; `newest_step` was reported `age_s` ago.

        `words`: how many follow each other before that. `took_s`: what the newest word took until all had answered; no
        more is made of that than a call for orders is held.
        """
        if step_time_s <= 0:
            return newest_step + 1 + words
        words_s = max(words * self.notice_s, min(words * took_s, self.hold_s))
        return newest_step + 1 + math.ceil((age_s + words_s) / step_time_s)
