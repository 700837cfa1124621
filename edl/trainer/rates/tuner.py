"""Learning rates that are tuned to where the loss falls most: `edl.schedule_rate(edl.RateTuner(losses_at))`.

Owns: when rates are tried, and what follows from it, the same on all workers. Does not own: the parabola
(`edl.policy.learning`), how a rate is tried (the script's function), nor the end of a mini-batch (the trainer).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from edl.collectives.ring_port import Ring, of_all_members
from edl.errors import UsageError
from edl.policy.learning import tuned

PLACES: Final = (-1.0, -0.5, 0.0, 0.5, 1.0)  # where the rate is tried, in parts of the way that it may go


class RateTuner:
    """Rate tuner after LRTuner (Iyer et al., 2021): at times all workers try five rates, and take the best between.

    Args:
        losses_at: a function of five multipliers; the five losses after an update with the rate times each, of samples
            that this worker chooses. It must leave model and optimizer as they were, and reduce nothing over workers:
            no step of the wrapped optimizer, and gradients by `torch.autograd.grad` instead of `backward()`.
        every: so many steps between two trials.
        most: how far the rate goes in one trial, up or down: 0.1 is a tenth.

    >>> edl.schedule_rate(edl.RateTuner(lambda rates: [rate * rate for rate in rates], every=100))
    """

    def __init__(
        self, losses_at: Callable[[tuple[float, ...]], Sequence[float]], every: int, most: float = 0.1
    ) -> None:
        if not callable(losses_at):
            raise UsageError(f"edl.RateTuner({losses_at!r}): give it a function of multipliers that returns losses")
        if type(every) is not int or every < 1:
            raise UsageError(f"edl.RateTuner(every={every!r}): must be a whole number of steps, at least 1")
        if not 0 < most < 1:
            raise UsageError(f"edl.RateTuner(most={most!r}): it is a part of the rate; say 0.1 or the like")
        self._losses_at = losses_at
        self._every = every
        self._most = most
        self._tried_step = 0
        self._factor = 1.0

    def at(self, progress: float) -> float:  # noqa: ARG002 - as of any schedule
        """Return the factor of the script's own rate."""
        return self._factor

    def is_due(self, step: int) -> bool:
        """Tell whether rates are to be tried after `step`."""
        return step - self._tried_step >= self._every

    def skip(self) -> None:
        # A step that changed nothing does not count as one between two trials.
        self._tried_step += 1

    def losses(self) -> list[float]:
        """Return this worker's losses, one for each place. Raises UsageError."""
        losses = self._losses_at(tuple(1.0 + self._most * place for place in PLACES))
        try:
            found = [float(loss) for loss in losses]
        except TypeError as error:
            raise UsageError(f"edl.RateTuner: losses_at() must return a list of numbers ({error})") from error
        if len(found) != len(PLACES):
            raise UsageError(f"edl.RateTuner: losses_at() gave {len(found)} losses for {len(PLACES)} multipliers")
        return found

    def tune(self, step: int, losses: Sequence[Sequence[float]]) -> None:
        """Update the factor after `step` by the losses of all workers. Places where one is not finite say nothing."""
        self._tried_step = step
        means = (math.fsum(place) / len(place) for place in zip(*losses, strict=True))
        known = tuple((self._most * p, mean) for p, mean in zip(PLACES, means, strict=True) if math.isfinite(mean))
        if len(known) >= 3:
            self._factor *= tuned(known, self._most)

    def state_dict(self) -> dict[str, Any]:
        return {"tried_step": self._tried_step, "factor": self._factor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._tried_step, self._factor = state["tried_step"], state["factor"]


def of_all(ring: Ring, losses: list[float]) -> list[list[float]]:
    """Return the losses of all members, the same to the bit on each worker. Raises RingBroken."""
    received = of_all_members(ring, msgspec.msgpack.encode(losses))
    return [msgspec.msgpack.decode(one, type=list[float]) for one in received]
