"""What learning rates are multiplied by while the global batch changes: `edl.scale_rate("linear", base_batch=256)`.

Owns: one job's factor, step by step, the same on all workers. Does not own: the rules (`edl.policy.learning`), nor
applying it (the adapters).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from edl.errors import UsageError
from edl.policy.learning import RAMP_STEPS, Ramp, Scaling, factor

Rule = str | Callable[[float], float]


class FollowingRate:
    """Follows the batch. A newcomer receives it, like anything with a `state_dict()`, so that all are at one factor."""

    def __init__(self, rule: Rule, base_batch: int, steps: int = RAMP_STEPS) -> None:
        """Raises UsageError."""
        if isinstance(rule, str) and rule not in set(Scaling):
            raise UsageError(f"scale_rate({rule!r}): the rule must be one of {', '.join(Scaling)}, or a function of k")
        if not isinstance(rule, str) and not callable(rule):
            raise UsageError(f"scale_rate({rule!r}): the rule must be one of {', '.join(Scaling)}, or a function of k")
        for name, value, least in (("base_batch", base_batch, 1), ("steps", steps, 0)):
            if type(value) is not int or value < least:
                raise UsageError(f"scale_rate({name}={value!r}): must be a whole number of at least {least}")
        self._rule = Scaling(rule) if isinstance(rule, str) else rule
        self._base = base_batch
        self._steps = steps
        self._ramp: Ramp | None = None  # none before the first step: there is no momentum to go easy on yet

    def at(self, step: int, batch: int) -> float:
        """The factor in `step`, for which the global batch is `batch`. Ask in the order of steps."""
        wanted = float(factor(self._rule, batch / self._base))
        if not wanted > 0:
            raise UsageError(f"scale_rate: the rule gives {wanted} for k={batch / self._base:g}; it must be positive")
        if self._ramp is None:
            self._ramp = Ramp(wanted, wanted, step, self._steps)
        elif wanted != self._ramp.after:
            self._ramp = self._ramp.turned(wanted, step - 1)
        return self._ramp.at(step)

    def is_settled(self, step: int) -> bool:
        """From `step` on nothing changes, as long as the batch does not."""
        return self._ramp is not None and step - self._ramp.began >= self._ramp.steps

    def state_dict(self) -> dict[str, Any]:
        return {} if self._ramp is None else msgspec.structs.asdict(self._ramp)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._ramp = Ramp(**state) if state else None
