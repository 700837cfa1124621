"""The noise of gradients, from values that workers compute anyway (McCandlish et al., 2018): pure arithmetic.

A gradient over b samples is the true gradient, G, plus noise of total variance var / b. So its squared norm is |G|^2 +
var / b on average: larger on one worker than over the whole batch. Both numbers follow from the two norms. AdaScale's
gain (Johnson et al., 2020) says how much a larger batch is worth with them.
"""

from __future__ import annotations

import math

import msgspec


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
