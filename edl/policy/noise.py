"""How noisy gradients are, from what workers compute anyway (McCandlish et al., 2018): pure arithmetic.

A gradient over b samples is the true one, G, and noise of variance var / b in all. So its squared norm is
|G|^2 + var / b on average: larger on one worker than over the batch of all. From the two norms both numbers follow.

What a larger batch is worth by them is AdaScale's gain (Johnson et al., 2020).
"""

from __future__ import annotations

import math

import msgspec


class MeasuredNoise(msgspec.Struct, frozen=True):
    """As it was measured, averaged over some steps."""

    sqr: float  # the squared norm of the true gradient
    var: float  # the variance of the gradient of one sample, all its parts together

    @property
    def scale(self) -> float:
        """The batch, in samples, in which noise and gradient are equal: far larger ones are worth little more."""
        return self.var / self.sqr if self.sqr > 0 else math.inf

    def gain(self, base: int, batch: int) -> float:
        """How many steps of `base` samples one of `batch` is worth: 1 without noise, up to batch / base with much."""
        sqr, var = max(self.sqr, 0.0), max(self.var, 0.0)
        if sqr + var == 0:
            return 1.0
        return (var / base + sqr) / (var / batch + sqr)


def of_step(own: float, inverse: float, whole: float) -> tuple[float, float] | None:
    """|G|^2, and the variance of the gradient of a batch of all workers; None where nothing can be told.

    Args:
        own: the squared norm of a worker's own gradient, on average over the workers.
        inverse: one over a worker's part of the batch, likewise.
        whole: the squared norm of the averaged gradient.
    """
    if not inverse > 1 or not (math.isfinite(own) and math.isfinite(whole)):  # gradients in half precision overflow
        return None
    var = (own - whole) / (inverse - 1)
    return whole - var, var
