"""Factors of this worker's learning rates: `edl.scale_rate` and `edl.schedule_rate` together; `edl.measure_noise()`.

Owns: what the script has asked for, when the factor changes, when gradient noise is measured, and its average. Does not
own: the factors themselves (`edl.trainer.rates.rate_factors`, `edl.trainer.rates.tuner`), nor applying them and the
norms of gradients (the adapters).
"""

from __future__ import annotations

from typing import Any, Final

from edl.core.worker.next_move import NEVER
from edl.core.worker.worker_inputs import RatesHold
from edl.errors import UsageError
from edl.policy.learning import MeasuredNoise, Scaling
from edl.protocol.data_nouns import DataSpec
from edl.trainer.data.shared_leases import SharedLeases
from edl.trainer.framework_port import Framework
from edl.trainer.rates.rate_factors import AnySchedule, FollowingRate, Rule, ScheduledRate
from edl.trainer.rates.tuner import RateTuner, of_all
from edl.trainer.registered_state import RegisteredState
from edl.trainer.worker_shell import WorkerShell

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


class RateFactors:
    """Factors of one trainer, none at first. Belongs to the training thread."""

    def __init__(self, framework: Framework, shell: WorkerShell, leases: SharedLeases, extras: RegisteredState) -> None:
        self._framework = framework
        self._shell = shell
        self._machine = shell.machine
        self._leases = leases
        self._extras = extras
        self._following: FollowingRate | None = None
        self._noise: NoiseMeter | None = None
        self._scheduled: ScheduledRate | None = None
        self._tuner: RateTuner | None = None

    # ------------------------------------------------------------------------------------------ what is asked for

    def scale(self, rule: Rule, base_batch: int, steps: int) -> None:
        """Follow the batch. Raises UsageError."""
        self._check_once("edl.scale_rate()", self._following)
        if rule == Scaling.ADASCALE and self._noise is None:
            self.measure(EVERY)
        self._following = FollowingRate(rule, base_batch, steps, lambda: self.noise)
        self._extras.add({"edl.rate": self._following})
        self._framework.scale_rates()

    def measure(self, every: int) -> None:
        """Measure the gradient noise. Raises UsageError."""
        self._check_once("edl.measure_noise()", self._noise)
        meter = NoiseMeter(every)
        self._framework.measure_noise()
        self._noise = meter
        self._extras.add({"edl.noise": meter})
        self._shell.hear(RatesHold(0))

    @property
    def noise(self) -> MeasuredNoise | None:
        return None if self._noise is None else self._noise.noise

    def schedule(self, schedule: AnySchedule, epochs: int | None) -> None:
        """Follow the samples trained. Raises UsageError."""
        self._check_once("edl.schedule_rate()", self._scheduled)
        self._scheduled = ScheduledRate(schedule, epochs)
        self._tuner = schedule if isinstance(schedule, RateTuner) else None
        self._extras.add({"edl.schedule": self._scheduled})
        self._framework.scale_rates()
        self._shell.hear(RatesHold(0))  # no step is a usual one

    def _check_once(self, call: str, before: object) -> None:
        if before is not None or self._machine.status.data is not None:
            raise UsageError(f"{call} must be called once, before elastic_shard_generator() is iterated")

    # --------------------------------------------------------------------------------------------- step after step

    def begin(self, spec: DataSpec) -> None:
        """Begin to train on `spec`. Raises UsageError."""
        if self._scheduled is not None:
            self._scheduled.begin(spec)

    def count(self) -> MeasuredNoise | None:
        """Count the committed mini-batch. Return its gradient noise, if it was measured."""
        step = self._machine.step + 1
        if self._scheduled is not None:
            self._scheduled.count(self._leases.samples(step))
        if self._following is not None and not self._leases.ends_pass(step):
            self._following.count(self._leases.samples(step))
        return None if self._noise is None or not self._noise.is_due(step) else self._measured(self._noise, step)

    def _measured(self, meter: NoiseMeter, step: int) -> MeasuredNoise | None:
        found, samples = self._framework.take_noise(), self._leases.samples(step)
        if found is None or not samples:
            return None
        sqr, var = found
        meter.take(sqr, var * samples)
        return meter.noise

    def skip(self) -> None:
        # A step without samples does not advance schedules that count steps (I13); those that count samples stay
        # anyway.
        if self._following is not None:
            self._following.skip()
        if self._tuner is not None:
            self._tuner.skip()

    def rehearse(self) -> None:
        # What a trial of rates compiles is compiled now: no worker waits for it later (I4).
        if self._tuner is not None:
            self._tuner.losses()

    def tune(self) -> None:
        """Tune the rate now and then between two steps: all workers are here, in the same state. Raises RingBroken."""
        if self._tuner is not None and self._tuner.is_due(self._machine.step):
            self._tuner.tune(self._machine.step, of_all(self._framework.ring, self._tuner.losses()))

    def follow(self) -> None:
        """Set the factor before each step whose factor may differ. Raises UsageError."""
        following, scheduled, machine = self._following, self._scheduled, self._machine
        if following is None and scheduled is None and self._noise is None:
            return
        if machine.status.data is None:
            if scheduled is not None:
                raise UsageError("edl.schedule_rate() needs samples to count: take them from elastic_shard_generator()")
            return
        coming, batch = machine.step + 1, self._leases.batch or machine.size * machine.status.data.batch
        factor = 1.0 if following is None else following.at(coming, batch)
        if scheduled is not None:
            factor *= scheduled.at(batch)
        self._framework.set_rate(factor)
        settled = scheduled is None and (following is None or following.is_settled(coming, batch))
        until = NEVER
        if self._noise is not None:
            self._framework.expect_noise(due=self._noise.is_due(coming))
            until = self._noise.alike_until(coming)
        self._shell.hear(RatesHold(until if settled else coming))
