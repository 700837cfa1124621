"""Factors for learning rates: `edl.scale_rate("linear", base_batch=256)` and schedules.

Owns: a job's factors, step by step, the same on all workers. Does not own: the rules (`edl.policy.learning`), nor
applying them (the adapters).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec

from edl.errors import UsageError
from edl.policy.learning import RAMP_STEPS, MeasuredNoise, Ramp, Scaling, Schedule, factor
from edl.protocol.data_nouns import DataSpec
from edl.trainer.packing import has_state

Rule = str | Callable[[float], float]
AnySchedule = Schedule | Callable[[float], float]


class FollowingRate:
    """A factor that follows the batch. A newcomer receives its state, so that all workers have the same factor."""

    def __init__(
        self,
        rule: Rule,
        base_batch: int,
        steps: int = RAMP_STEPS,
        noise: Callable[[], MeasuredNoise | None] = lambda: None,
    ) -> None:
        """`noise`: as far as it is known, for AdaScale's rule. Raises UsageError."""
        if rule not in set(Scaling) if isinstance(rule, str) else not callable(rule):
            raise UsageError(f"scale_rate({rule!r}): the rule must be one of {', '.join(Scaling)}, or a function of k")
        for name, value, least in (("base_batch", base_batch, 1), ("steps", steps, 0)):
            if type(value) is not int or value < least:
                raise UsageError(f"scale_rate({name}={value!r}): must be a whole number of at least {least}")
        self._rule = Scaling(rule) if isinstance(rule, str) else rule
        self._base = base_batch
        self._steps = steps
        self._noise = noise
        self._ramp: Ramp | None = None  # none before the first step: there is no momentum to go easy on yet
        self._made = 0  # samples of the newest full step

    def count(self, samples: int) -> None:
        """Note a full step with so many samples of all workers."""
        self._made = samples

    def skip(self) -> None:
        # A step without samples is no part of the ramp: the rest of it stays as long as before.
        if self._ramp is not None:
            self._ramp = msgspec.structs.replace(self._ramp, began=self._ramp.began + 1)

    def at(self, step: int, batch: int) -> float:
        """Return the factor in `step`. Ask in the order of steps.

        The global batch should be `batch`. But newcomers may have no samples yet: what counts is the newest full step.
        """
        made = self._made or batch
        wanted = float(factor(self._rule, self._base, made, self._noise()))
        if not wanted > 0:
            raise UsageError(f"scale_rate: the rule gives {wanted} for k={made / self._base:g}; it must be positive")
        if self._ramp is None:
            self._ramp = Ramp(wanted, wanted, step, self._steps)
        elif wanted != self._ramp.after:
            self._ramp = self._ramp.turned(wanted, step - 1)
        return self._ramp.at(step)

    def is_settled(self, step: int, batch: int) -> bool:
        """Tell whether nothing changes from `step` on, as long as `batch` does not."""
        return self._made == batch and self._ramp is not None and step - self._ramp.began >= self._ramp.steps

    def state_dict(self) -> dict[str, Any]:
        return {"made": self._made, "ramp": None if self._ramp is None else msgspec.structs.asdict(self._ramp)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._made = state["made"]
        self._ramp = None if state["ramp"] is None else Ramp(**state["ramp"])


class ScheduledRate:
    """A factor that follows the samples trained. A newcomer receives their number, and the schedule's own state."""

    def __init__(self, schedule: AnySchedule, epochs: int | None = None) -> None:
        """`epochs`: of the whole training, where the script's generator does not say it. Raises UsageError."""
        at = getattr(schedule, "at", schedule)
        if isinstance(schedule, type) or not callable(at):
            raise UsageError(
                f"schedule_rate({schedule!r}): give it edl.Knee(...), edl.Warmup(...), a function of progress (0.0 to "
                "1.0), or an object whose at(progress) is one"
            )
        if epochs is not None and (type(epochs) is not int or epochs < 1):
            raise UsageError(f"schedule_rate(epochs={epochs!r}): must be a whole number of at least 1, or None")
        self._schedule = schedule
        self._factor_at: Callable[[float], float] = at
        self._epochs = epochs
        self._total = 0  # of all epochs; unknown before the data is
        self._trained = 0

    def begin(self, spec: DataSpec) -> None:
        """Begin to train on `spec`. Raises UsageError."""
        if spec.shards:
            raise UsageError(
                "schedule_rate: of a stream edl cannot tell how far training is, as it has no length: schedule by "
                "steps, with a scheduler of the script's that is registered"
            )
        if self._epochs is None and not spec.has_end:
            raise UsageError(
                "schedule_rate: with elastic_shard_generator(epochs=None) edl cannot tell how far training is; say how "
                "many epochs there will be: edl.schedule_rate(..., epochs=90)"
            )
        self._total = spec.total * (spec.epochs if self._epochs is None else self._epochs)

    def count(self, samples: int) -> None:
        """Count the samples that all workers trained in a committed step."""
        self._trained += samples

    def at(self, batch: int) -> float:
        """Return the factor in the coming step, for which the global batch is `batch`; after `begin`.

        It is that of the step's middle: so a straight line means the same for small batches and for large ones.
        """
        trained = min(self._trained, self._total)
        progress = (trained + min(batch, self._total - trained) / 2) / self._total
        found = self._factor_at(progress)
        try:
            wanted = float(found)
        except (TypeError, ValueError):
            wanted = math.nan
        if not 0 <= wanted < math.inf:
            raise UsageError(f"schedule_rate: the schedule gives {found!r} at {progress:.3f}; it must give 0 or more")
        return wanted

    def state_dict(self) -> dict[str, Any]:
        schedule: Any = self._schedule
        return {"trained": self._trained, "schedule": schedule.state_dict() if has_state(schedule) else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._trained = state["trained"]
        if has_state(self._schedule):
            self._schedule.load_state_dict(state["schedule"])  # type: ignore[union-attr]
