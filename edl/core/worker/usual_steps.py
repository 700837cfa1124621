"""The next step whose end is no usual one: up to it, nothing is asked at the end of a mini-batch but to count it.

Owns: up to which step a worker's weight and its learning rates stay as they are, and after which one its ring compares
states. Does not own: the daemon's wish for attention, which stands beside it in the page
(`edl.transport.step_counter`).
"""

from __future__ import annotations

from edl.core.worker.divergence_finder import next_check
from edl.core.worker.next_move import NEVER
from edl.protocol.divergence_report import Checking


class Unusual:
    """Steps of one worker, in its ring, that need more than a count."""

    def __init__(self) -> None:
        self.even_until = NEVER  # the weight holds up to this step
        self.rates_until = NEVER  # learning rates are multiplied by the same up to this step
        self.checking = Checking()
        self.check_at = NEVER  # the step after which this ring compares its members' states
        self.equal_step = 0  # the newest after which it did, and found them equal
        self.began = 0  # the step after which all members of this ring have their state

    @property
    def step(self) -> int:
        """Return the first step that is to be looked at."""
        return min(self.even_until, self.rates_until, self.check_at)

    def sit(self, checking: Checking, step: int, size: int, *, beside: int = 0) -> None:
        """A ring of `size` begins after `step`. Before the first step there is nothing to compare yet; nor, where
        newcomers get their state `beside` so many steps, before the one that follows.
        """
        self.even_until = NEVER
        self.checking, self.equal_step, self.began = checking, 0, step + beside
        self.check_at = self.began if step > 0 and size > 1 else self._next_check(step, size)

    def note_equal(self, step: int, size: int) -> None:
        self.equal_step = step
        self.check_at = self._next_check(step, size)

    def _next_check(self, step: int, size: int) -> int:
        return next_check(step, self.checking.every, size, self.began)

    def draw_nearer(self, step: int) -> None:
        """Look again at the latest after `step`: later steps may have another weight than expected."""
        self.even_until = min(self.even_until, step)
