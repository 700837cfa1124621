"""The calls by which a script lets edl follow its batch with learning rates, and measure gradient noise.

Owns: these calls. Does not own: what becomes of them (`edl.trainer.rates.factors`).
"""

from __future__ import annotations

from edl.policy.learning import RAMP_STEPS, MeasuredNoise
from edl.trainer.rates.factors import EVERY, RateFactors
from edl.trainer.rates.rate_factors import AnySchedule, Rule
from edl.trainer.rates.tuner import RateTuner
from edl.trainer.seating import Seating


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
