"""How the learning rate follows the batch, and schedules of it: pure functions of step numbers.

When the batch goes from B to kB, the rate has to grow: linearly (k), by the square root, or by the user's rule. All at
once it would multiply the noise in the momentum, too; so it grows in a straight line over some steps (Lin et al.,
"Dynamic Mini-batch SGD", 2019): 1 + (t - t0) / T * (k - 1), T = 8.

A factor is always against the batch that the script was written for, so it goes with any schedule of the script's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum
from typing import Final

import msgspec

RAMP_STEPS: Final = 8


class Scaling(StrEnum):
    """What the rate does when the batch is k times as large."""

    LINEAR = "linear"
    ROOT = "sqrt"
    NONE = "none"


def factor(rule: Scaling | Callable[[float], float], k: float) -> float:
    """By what the rate is multiplied for a batch that is `k` times as large as the script's."""
    if not isinstance(rule, Scaling):
        return rule(k)
    match rule:
        case Scaling.LINEAR:
            return k
        case Scaling.ROOT:
            return math.sqrt(k)
        case Scaling.NONE:
            return 1.0


class Ramp(msgspec.Struct, frozen=True):
    """The factor on its way from one batch's to the next one's; `began` is the last step of the one before."""

    before: float = 1.0
    after: float = 1.0
    began: int = 0
    steps: int = RAMP_STEPS

    def at(self, step: int) -> float:
        """In `step`."""
        done = step - self.began
        if done >= self.steps or self.steps <= 0:
            return self.after
        return self.before + max(0, done) / self.steps * (self.after - self.before)

    def turned(self, after: float, step: int) -> Ramp:
        """A new batch is trained with from the step after `step` on: from where the factor is by now."""
        return Ramp(self.at(step), after, step, self.steps)


class Knee(msgspec.Struct, frozen=True):
    """The explore-exploit schedule (Iyer et al., 2020): as factors of the peak rate.

    Up in a straight line for `warmup` steps, at the peak while exploring, then down in a straight line to nothing.
    In samples instead of steps it is the same schedule at any batch.
    """

    total: int
    explore: int
    warmup: int = 0

    def at(self, step: int) -> float:
        """In `step`, counted from 1."""
        if step <= self.warmup:
            return step / self.warmup
        peak_until = self.warmup + self.explore
        if step <= peak_until:
            return 1.0
        decay = self.total - peak_until
        return max(0.0, 1.0 - (step - peak_until) / decay) if decay > 0 else 0.0


def warm(step: int, steps: int) -> float:
    """A gradual warm-up to a large batch's rate (Goyal et al., 2017): the factor in `step`, from 1."""
    return 1.0 if steps <= 0 or step >= steps else step / steps


def tuned(losses: tuple[tuple[float, float], ...], most: float) -> float:
    """LRTuner's step (2021): by what to multiply the rate, given losses after steps with the rate times (1 + e).

    A quadratic through them, k0 + k1 e + k2 e^2, has its minimum at -k1 / (2 k2), which is taken up to +-`most`. Where
    it has none, the better end is taken.
    """
    k1, k2 = _quadratic(losses)
    if k2 > 0:
        best = -k1 / (2 * k2)
    elif k1 == 0:
        best = 0.0
    else:
        best = -math.copysign(most, k1)
    return 1.0 + max(-most, min(most, best))


def _quadratic(points: tuple[tuple[float, float], ...]) -> tuple[float, float]:
    """The coefficients k1 and k2 of the best fit by least squares. Raises ValueError for fewer than three places."""
    if len({place for place, _ in points}) < 3:
        raise ValueError("a quadratic needs losses at three different rates")
    sums = [sum(e**power for e, _ in points) for power in range(5)]
    right = [sum(loss * e**power for e, loss in points) for power in range(3)]
    rows = [[sums[row + column] for column in range(3)] + [right[row]] for row in range(3)]
    for place in range(3):
        pivot = max(range(place, 3), key=lambda row: abs(rows[row][place]))
        rows[place], rows[pivot] = rows[pivot], rows[place]
        for row in range(3):
            if row != place:
                ratio = rows[row][place] / rows[place][place]
                rows[row] = [a - ratio * b for a, b in zip(rows[row], rows[place], strict=True)]
    return rows[1][3] / rows[1][1], rows[2][3] / rows[2][2]
