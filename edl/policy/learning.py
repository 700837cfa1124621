"""Factors of the learning rate for another batch, schedules of the rate, and the gradients' noise: pure functions.

When the batch goes from B to kB, the rate has to grow: linearly (k), by the square root, by the gradient noise that is
measured (AdaScale), or by the user's rule. A sudden change would multiply the noise in the momentum, too; so the factor
grows in a straight line over some steps (Lin et al., "Dynamic Mini-batch SGD", 2019): 1 + (t - t0) / T * (k - 1).

A factor is always relative to the batch that the script was written for, so it combines with any schedule of the
script.

A schedule is a function of progress: the trained part of the samples of all epochs, 0.0 to 1.0. So it does not depend
on the batch, nor on the number of workers.

A gradient over b samples is the true gradient, G, plus noise of total variance var / b. So its squared norm is |G|^2 +
var / b on average: larger on one worker than over the whole batch. Both numbers follow from the two norms, which
workers compute anyway (McCandlish et al., 2018). AdaScale's gain (Johnson et al., 2020) says how much a larger batch is
worth with them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final, Protocol

import msgspec

from edl.errors import UsageError


class MeasuredNoise(msgspec.Struct, frozen=True):
    """The noise as it was measured, averaged over some steps."""

    sqr: float  # the squared norm of the true gradient
    var: float  # the variance of the gradient of one sample, all its parts together

    @property
    def scale(self) -> float:
        """The batch, in samples, in which noise and gradient are equal: far larger batches are worth little more."""
        return self.var / self.sqr if self.sqr > 0 else math.inf

    def gain(self, base: int, batch: int) -> float:
        """Return how many steps of `base` samples one step of `batch` samples is worth: 1 without noise, up to batch /
        base with much.
        """
        sqr, var = max(self.sqr, 0.0), max(self.var, 0.0)
        if sqr + var == 0:
            return 1.0
        return (var / base + sqr) / (var / batch + sqr)


def of_step(own: float, inverse: float, whole: float) -> tuple[float, float] | None:
    """Return |G|^2, and the variance of the gradient of a batch of all workers; None if they cannot be computed.

    Args:
        own: the squared norm of a worker's own gradient, on average over the workers.
        inverse: one over a worker's part of the batch, likewise.
        whole: the squared norm of the averaged gradient.
    """
    if not inverse > 1 or not (math.isfinite(own) and math.isfinite(whole)):  # gradients in half precision overflow
        return None
    var = (own - whole) / (inverse - 1)
    return whole - var, var


RAMP_STEPS: Final = 8


class Scaling(StrEnum):
    """The rule for the rate when the batch is k times as large."""

    LINEAR = "linear"
    ROOT = "sqrt"
    ADASCALE = "adascale"
    NONE = "none"


def factor(rule: Scaling | Callable[[float], float], base: int, batch: int, noise: MeasuredNoise | None) -> float:
    """Return the factor of the rate for `batch`, if the script's batch is `base`. AdaScale's rule needs `noise`, and
    leaves the rate unchanged until the noise is known.
    """
    k = batch / base
    if not isinstance(rule, Scaling):
        return rule(k)
    match rule:
        case Scaling.LINEAR:
            return k
        case Scaling.ROOT:
            return math.sqrt(k)
        case Scaling.ADASCALE:
            return 1.0 if noise is None else noise.gain(base, batch)
        case Scaling.NONE:
            return 1.0


class Ramp(msgspec.Struct, frozen=True):
    """The factor on its way from the last batch's to the present one's; `began` is the last step
    with the last batch.
    """

    before: float = 1.0
    after: float = 1.0
    began: int = 0
    steps: int = RAMP_STEPS

    def at(self, step: int) -> float:
        done = step - self.began
        if done >= self.steps or self.steps <= 0:
            return self.after
        return self.before + max(0, done) / self.steps * (self.after - self.before)

    def turned(self, after: float, step: int) -> Ramp:
        """Return the ramp of a new batch, which is trained from the step after `step` on; it begins at the present
        factor.
        """
        return Ramp(self.at(step), after, step, self.steps)


class Schedule(Protocol):
    """A schedule of the rate by progress."""

    def at(self, progress: float) -> float:
        """Return the factor of the full rate."""


class Knee(msgspec.Struct, frozen=True):
    """Explore, then exploit (Iyer et al., 2020): `edl.schedule_rate(edl.Knee(explore=0.4, warmup=0.05))`.

    The rate grows in a straight line during the warm-up, is full while exploring, and then falls in a straight line to
    0.

    Args:
        explore: the part of all samples of all epochs with the full rate, 0.0 to 1.0.
        warmup: the part of all samples before that, in which the rate grows.

    >>> knee = edl.Knee(explore=0.5, warmup=0.1)
    >>> [round(knee.at(progress), 2) for progress in (0.05, 0.3, 0.6, 0.8, 1.0)]
    [0.5, 1.0, 1.0, 0.5, 0.0]
    >>> edl.schedule_rate(knee, epochs=10)
    """

    explore: float
    warmup: float = 0.0

    def __post_init__(self) -> None:
        _check_parts("Knee", explore=self.explore, warmup=self.warmup)

    def at(self, progress: float) -> float:
        """Return the factor of the full rate."""
        peak_until = self.warmup + self.explore
        if progress < self.warmup:
            return progress / self.warmup
        return 1.0 if progress <= peak_until else (1.0 - progress) / (1.0 - peak_until)


class Warmup(msgspec.Struct, frozen=True):
    """A gradual warm-up to a large batch's rate (Goyal et al., 2017): `edl.schedule_rate(edl.Warmup(0.05))`.

    Args:
        warmup: the part of all samples of all epochs, 0.0 to 1.0, in which the rate grows in a straight line.

    >>> edl.Warmup(0.1).at(0.05)
    0.5
    >>> edl.schedule_rate(edl.Warmup(0.1), epochs=10)
    """

    warmup: float

    def __post_init__(self) -> None:
        _check_parts("Warmup", warmup=self.warmup)

    def at(self, progress: float) -> float:
        """Return the factor of the full rate."""
        return progress / self.warmup if progress < self.warmup else 1.0


def _check_parts(schedule: str, **parts: Any) -> None:
    for name, value in parts.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise UsageError(f"edl.{schedule}({name}={value!r}): it is a part of all training; say 0.0 to 1.0")
    if sum(parts.values()) > 1:
        raise UsageError(f"edl.{schedule}: {' and '.join(parts)} are more than all training; say 1.0 at most in all")


def tuned(losses: tuple[tuple[float, float], ...], most: float) -> float:
    """Return LRTuner's factor of the rate (2021), given losses after steps with the rate times (1 + e).

    A quadratic through them, k0 + k1 e + k2 e^2, has its minimum at -k1 / (2 k2), which is limited to +-`most`. If it
    has no minimum, the better end is taken.
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
    """Return the coefficients k1 and k2 of the best fit by least squares. Raises ValueError for fewer than three
    places.
    """
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
