"""A daemon's view of its trainer: the trainer's status, combined with its words in the shared page."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from edl.core.worker.observed_trainer import ObservedTrainer, has_entered
from edl.protocol.leader_messages import Observation, Phase, Word
from edl.protocol.tally import HELD, LimbSeen, Usage
from edl.protocol.trainer_messages import TrainerStatus

MEMORIES_S = (0.5, 20.0)  # time constants of the two mean step times: a value so old has lost 63 % of its weight


class StepPage(Protocol):
    """The words of a trainer in its page, or in the pages of its processes together."""

    @property
    def step(self) -> int: ...

    @property
    def waited_ns(self) -> int: ...

    @property
    def loaded_ns(self) -> int: ...


class TrainerView(ObservedTrainer):
    """Combine the status and readings into one Observation; no clock, no socket."""

    def __init__(
        self,
        page: StepPage,
        refused: Callable[[], dict[str, int]] = dict,
        used: Callable[[], tuple[float, int]] = lambda: (0.0, 0),
        halted: Callable[[], str] = str,
        limbs: Callable[[], tuple[LimbSeen, ...]] = tuple,
    ) -> None:
        """`refused`: counts of refusals by the daemon. `used`: seconds of CPU and bytes of memory of the trainer.
        `halted`: what the system holds the trainer's process up by. `limbs`: its processes, if several.
        """
        super().__init__()
        self._used, self._halted, self._limbs = used, halted, limbs
        self._page = page
        self._refused = refused
        self.met: tuple[int, ...] = (0,)  # presence of the workers called to a next ring, as this daemon has seen it
        self.dead: tuple[str, ...] = ()  # other workers of this host, as this daemon has seen
        self.driver: Word | None = None  # the newest report of the stand-in about horovodrun's driver
        self._step_times_s: tuple[float, ...] = (0.0, 0.0)
        self._measured_s = 0.0  # the time that these are means of
        self._sitting_s = self._computed_s = 0.0  # seconds in rings; and of these, neither waiting nor loading
        self._idle_before_s = self._idle_s()
        self._looked_at: float | None = None
        self._last: tuple[int, float] | None = None  # step and time of the newest measurement

    def hear(self, status: TrainerStatus) -> bool:
        if has_entered(self.status, status):
            self._last = None  # another ring has other steps
        return super().hear(status)

    @property
    def is_at_its_end(self) -> bool:
        """Tell whether the trainer has ended, and nothing that is left of it is held."""
        return self.status.over and not any(one.state == HELD for one in self._limbs())

    def observe(self, now: float) -> Observation:
        self._measure(now)
        self._sit(now)
        cpu_s, memory = self._used()
        usage = Usage(
            at=now,
            step=self._page.step,
            waited_s=self._page.waited_ns / 1e9,
            loaded_s=self._page.loaded_ns / 1e9,
            cpu_s=cpu_s,
            memory=memory,
            reported=self.status.figures,
            computed_s=self._computed_s,
        )
        return self.observation(
            step=self._page.step,
            step_time_s=min(self._step_times_s),
            refused=self._refused(),
            driver=self.driver,
            usage=usage,
            met=self.met,
            dead=self.dead,
            halted=self._halted(),
            limbs=self._limbs(),
            at=now,
        )

    def _idle_s(self) -> float:
        """Return how long the trainer has waited for peers and samples."""
        return (self._page.waited_ns + self._page.loaded_ns) / 1e9

    def _sit(self, now: float) -> None:
        """Count the seconds in rings, and those spent on computing."""
        last, self._looked_at = self._looked_at, now
        if last is not None and self.status.phase is Phase.TRAINING:
            self._sitting_s += now - last
            # A wait is known once it is over. Time counted as computing until then is not taken back, but offset by
            # later time: a counter must not shrink.
            self._computed_s = max(self._computed_s, self._sitting_s - (self._idle_s() - self._idle_before_s))

    def _measure(self, now: float) -> None:
        """Update the mean step times."""
        # Occasional readings are enough for a mean, and cost the trainer nothing. Of the two means the shorter one
        # counts: when a switch is planned, steps have been long for moments, as its ring was prepared, and are about to
        # be short.
        step, last = self._page.step, self._last
        if last is None:
            self._last = (step, now)
        elif step > last[0]:
            elapsed_s = now - last[1]
            newest = elapsed_s / (step - last[0])
            # At first both are the mean of all: the first reading may be of a part of a step.
            begins = self._measured_s < MEMORIES_S[0]
            self._measured_s += elapsed_s
            least = elapsed_s / self._measured_s if begins else 0.0
            weights = [max(least, 1 - math.exp(-elapsed_s / memory_s)) for memory_s in MEMORIES_S]
            means = zip(weights, self._step_times_s, strict=True)
            self._step_times_s = tuple(mean + weight * (newest - mean) for weight, mean in means)
            self._last = (step, now)
