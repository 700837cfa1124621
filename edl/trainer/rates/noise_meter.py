"""Gradient noise of this job, measured now and then: `edl.measure_noise()`.

Owns: when it is measured, and its average. Does not own: the norms of gradients (the adapters), nor what follows from
them (`edl.policy.gradient_noise`).
"""

from __future__ import annotations

from typing import Any, Final

from edl.errors import UsageError
from edl.policy.gradient_noise import MeasuredNoise

EVERY: Final = 20  # steps
KEPT: Final = 0.95  # of the average, with each new value: one of them says little


class NoiseMeter:
    """Average the noise, equally on all workers. A newcomer receives it, like anything with a `state_dict()`."""

    def __init__(self, every: int) -> None:
        if type(every) is not int or every < 1:
            raise UsageError(f"measure_noise(every={every!r}): must be a whole number of steps, 1 at least")
        self.every = every
        self._sqr = self._var = self._weight = 0.0

    @property
    def noise(self) -> MeasuredNoise | None:
        """Average so far; None before the first measurement."""
        return MeasuredNoise(self._sqr / self._weight, self._var / self._weight) if self._weight else None

    def is_due(self, step: int) -> bool:
        return step % self.every == 0

    def alike_until(self, step: int) -> int:
        """Return the last step until which none, or only `step` itself, is measured."""
        return step if self.is_due(step) else -(-step // self.every) * self.every - 1

    def take(self, sqr: float, var: float) -> None:
        """Add the measurement of one step; `var` is of one sample."""
        self._sqr, self._var, self._weight = (
            KEPT * before + (1 - KEPT) * now
            for before, now in ((self._sqr, sqr), (self._var, var), (self._weight, 1.0))
        )

    def state_dict(self) -> dict[str, Any]:
        return {"sqr": self._sqr, "var": self._var, "weight": self._weight}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._sqr, self._var, self._weight = state["sqr"], state["var"], state["weight"]
