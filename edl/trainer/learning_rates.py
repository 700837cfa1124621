"""Let a script's learning rates follow the batch: `edl.scale_rate`, `edl.schedule_rate`, `edl.measure_noise`.

Owns: what the script has asked for, the factors, when they change, when gradient noise is measured, and its average.
Does not own: applying factors, nor the norms of gradients (the adapters).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from edl.collectives.ring_port import Ring, of_all_members
from edl.core.worker.next_move import NEVER
from edl.core.worker.worker_inputs import RatesHold
from edl.errors import UsageError
from edl.policy.learning import RAMP_STEPS, MeasuredNoise, Ramp, Scaling, Schedule, factor, tuned
from edl.protocol.data_nouns import DataSpec
from edl.trainer.data.shared_leases import SharedLeases
from edl.trainer.framework_port import Framework
from edl.trainer.packing import has_state
from edl.trainer.registered_state import RegisteredState
from edl.trainer.seating import Seating
from edl.trainer.worker_shell import WorkerShell

# Factors for learning rates: `edl.scale_rate("linear", base_batch=256)` and schedules.


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


# Learning rates that are tuned to where the loss falls most: `edl.schedule_rate(edl.RateTuner(losses_at))`.


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


# The calls by which a script lets edl follow its batch with learning rates, and measure gradient noise.


class RateCalls:
    """The calls of one script, on the training thread."""

    def __init__(self, seating: Seating, rates: RateFactors) -> None:
        self._seating, self._rates = seating, rates

    def scale_rate(self, rule: Rule, base_batch: int, steps: int = RAMP_STEPS) -> None:
        """Multiply learning rates by what the batch of all workers asks for, and go there in a few steps.

        Args:
            rule: "linear", "sqrt" or "none", or a function of k; k is the samples of a step of all workers over
                `base_batch`. Or "adascale": by the gradient noise, see `measure_noise`.
            base_batch: the batch that the optimizer's own learning rate is meant for.
            steps: when the batch changes, the factor goes to its new value in a straight line over so many steps.

        Call it before the first mini-batch, on all workers alike. The script's own schedule goes on unchanged, and what
        it reads is without the factor.

        >>> edl.scale_rate("linear", base_batch=128)  # twice the rate at 256 samples a step
        """
        self._seating.started()
        if rule == "adascale":
            self._seating.check_alone('edl.scale_rate("adascale")')
        if not self._seating.imports_only:
            self._rates.scale(rule, base_batch, steps)

    def schedule_rate(self, schedule: AnySchedule, epochs: int | None = None) -> None:
        """Multiply learning rates by a schedule of the samples trained: the same at any size and batch.

        Args:
            schedule: `edl.Knee(...)`, `edl.Warmup(...)`, a function of progress, or an object whose `at(progress)` is
                one; with a `state_dict()`, it travels to newcomers. Progress is what is trained of all samples of all
                epochs, from 0.0 to 1.0. Or `edl.RateTuner(...)`.
            epochs: of the whole training, where `elastic_shard_generator(epochs=...)` does not say it.

        Call it before the first mini-batch, on all workers alike. It goes with `scale_rate`, and with the script's own
        schedule: all are multiplied, and what the script reads is without edl's.

        >>> edl.schedule_rate(lambda progress: 1.0 - progress, epochs=10)
        """
        self._seating.started()
        if isinstance(schedule, RateTuner):
            self._seating.check_alone("edl.schedule_rate(edl.RateTuner(...))")
        if not self._seating.imports_only:
            self._rates.schedule(schedule, epochs)

    def measure_noise(self, every: int = EVERY) -> None:
        """Measure the gradient noise in each `every`-th step: `edl.gradient_noise()` has it, and the job's policy, as
        figures `grad_sqr` and `grad_var`. `edl.scale_rate("adascale", ...)` does so by itself.

        It takes the norms of all gradients, before and after they are averaged, so at least two workers. Call it before
        the first mini-batch, on all workers alike. Not in graphs of TensorFlow 1.

        >>> edl.measure_noise(every=10)
        """
        self._seating.started()
        self._seating.check_alone("edl.measure_noise()")
        if not self._seating.imports_only:
            self._rates.measure(every)

    def gradient_noise(self) -> MeasuredNoise | None:
        """Return the noise as measured so far; None before the first time.

        `sqr` is the squared norm of the true gradient, `var` the variance of one sample's, and `scale` the batch in
        which the two are equal.

        >>> noise = edl.gradient_noise()
        >>> noise.scale if noise else "not measured yet"
        'not measured yet'
        """
        return self._rates.noise
