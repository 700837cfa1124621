"""Keep the steps that each job has reported, and predict how fast the job would be at other sizes.

The same code hears live jobs and a simulator's tables. A model is fitted anew only when a job reports a step that the
model does not predict. Owns: the facts of each job, bounded, the models' formulas, the best batch at each size, and how
uncertain a figure is. Does not own: the decisions made by them.

What a larger batch is worth follows from the gradient noise scale (McCandlish et al. 2018), as Pollux uses it. With B
samples a step makes as much progress as `gain` steps with the job's own batch B0:

    gain = (var + sqr) / (var / (B / B0) + sqr)

Here sqr is the squared norm of the true gradient, and var the variance of the gradient of one batch B0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from edl.cluster.views import Aim, Guess, Provenance, Rates, Speed
from edl.errors import ConfigError


class Noise(msgspec.Struct, frozen=True):
    """The newest gradient noise that a job has reported, averaged over its steps since the report before."""

    sqr: float
    var: float

    def gain(self, scale: NDArray[np.float64]) -> NDArray[np.float64]:
        below = self.var / scale + self.sqr
        return np.where(below > 0, (self.var + self.sqr) / np.maximum(below, 1e-300), 1.0)


Floats = NDArray[np.float64]

TRIED: Final = 32  # batches between the smallest and the largest, in geometric steps


class Batches(msgspec.Struct, frozen=True):
    own: int  # global batch that the job was written for: progress is counted in steps of it
    smallest: int
    largest: int
    smallest_pass: int = 1  # samples that one worker takes in one pass, at least
    largest_pass: int = 1 << 40
    given: int = 0  # the batch that the owner asked for, where it is fixed; 0: the job's own
    accumulates: bool = True  # a worker may make several passes for one step (gradient accumulation)
    each: int = 0  # samples of each worker, where the batch grows with the workers and nothing else changes it; else 0


class Predicted:
    """A snapshot of a job's predicted speed: it does not change when the job reports more.

    `tried`: the numbers of workers, and of nodes, whose steps were measured.
    """

    def __init__(
        self, batches: Batches, model: StepModel, noise: Noise | None, tried: frozenset[tuple[int, int]]
    ) -> None:
        self._batches, self._model, self._noise, self._tried = batches, model, noise, tried
        self._known: dict[tuple[int, int, Aim], Rates] = {}

    def holds(self, noise: Noise | None, share: float) -> bool:
        """Tell whether `noise` differs by at most `share` from the noise that this prediction was made with."""
        if noise is None or self._noise is None:
            return noise is self._noise
        ratios = [
            (now + 1e-300) / (then + 1e-300) for now, then in zip(_scale(noise), _scale(self._noise), strict=True)
        ]
        return max(abs(math.log(ratio)) for ratio in ratios) <= share

    def rates(self, most: int, devices: int, aim: Aim = Aim.PROGRESS) -> Rates:
        key = (most, devices, aim)
        if key not in self._known:
            self._known[key] = self._work_out(*key)
        return self._known[key]

    def _work_out(self, most: int, devices: int, aim: Aim) -> Rates:
        workers = np.arange(1, most + 1, dtype=float)
        nodes = np.ceil(workers / devices)
        given = aim is Aim.GIVEN
        wanted = self._wanted(workers, given)
        passes, samples = self._passes(workers[:, None], wanted)
        batch = workers[:, None] * passes * samples
        every = np.broadcast_to(workers[:, None], batch.shape)
        places = [(int(n), int(on)) for n, on in zip(workers, nodes, strict=True)]
        step = self._model.step_s(every, np.broadcast_to(nodes[:, None], batch.shape), samples)
        seconds = step + (passes - 1) * self._model.pass_s(samples)
        gain = self._gain(batch)
        allowed = self._allowed(batch, samples, passes, given)
        progress, throughput = np.where(allowed, gain / seconds, 0.0), np.where(allowed, batch / seconds, 0.0)
        best = np.argmax(throughput if aim is Aim.THROUGHPUT else progress, axis=1)
        rows = np.arange(most)
        return Rates(
            progress=progress[rows, best],
            throughput=throughput[rows, best],
            batch=batch[rows, best].astype(np.int64),
            sigma=self._model.sigma(workers, nodes, samples[rows, best]),
            provenance=tuple(Provenance.MEASURED if place in self._tried else Provenance.FITTED for place in places),
        )

    def _wanted(self, workers: Floats, given: bool) -> Floats:
        known = self._batches
        if known.each:
            return np.asarray(workers[:, None] * known.each)
        if given:
            return np.full((len(workers), 1), float(known.given or known.own))
        least = np.maximum(known.smallest, known.smallest_pass * workers)
        steps = np.linspace(0, 1, TRIED)
        return np.asarray(np.exp(np.log(least)[:, None] * (1 - steps) + math.log(known.largest) * steps))

    def _passes(self, workers: Floats, wanted: Floats) -> tuple[Floats, Floats]:
        """Return the number of passes that each worker makes for a step, and the samples of each pass."""
        if self._batches.each:
            return np.ones_like(wanted), np.full_like(wanted, float(self._batches.each))
        share = np.ceil(wanted / workers - 1e-6)
        passes = np.ceil(share / self._batches.largest_pass)
        if self._batches.accumulates:  # one worker's single pass tells nothing about the noise of a larger batch
            alone = (workers == 1) & (wanted > self._batches.own * (1 + 1e-6))
            passes = np.maximum(passes, np.where(alone, 2, 1))
        samples = np.ceil(share / passes - 1e-6)
        return passes, np.maximum(np.minimum(samples, np.floor(self._batches.largest / (workers * passes))), 1)

    def _allowed(self, batch: Floats, samples: Floats, passes: Floats, given: bool) -> NDArray[np.bool_]:
        known = self._batches
        if known.each:
            return np.ones_like(batch, dtype=np.bool_)
        allowed = (samples <= known.largest_pass) & (known.accumulates | (passes <= 1))
        if given:
            return np.asarray(allowed)
        return np.asarray(allowed & (samples >= known.smallest_pass) & (batch <= known.largest))

    def _gain(self, batch: Floats) -> Floats:
        """Return the progress of a step, in steps of the job's own batch."""
        # Without a measured noise, samples count fully up to the job's own batch, and not at all beyond it. Where the
        # batch grows with the workers each sample counts, as the job is to pass over a given amount of data.
        scale = batch / self._batches.own
        if self._batches.each:
            return scale
        if self._noise is None:
            return np.minimum(scale, 1.0)
        return self._noise.gain(scale)


def _scale(noise: Noise) -> tuple[float]:
    return (noise.var / noise.sqr if noise.sqr > 0 else 1e300,)


# relative difference expected between a measured step and the model: placements and networks vary as much
NOISE: Final = 0.2
# Logarithms of: a and b m over the first pass; c over the first pass; d over c; c and d across nodes over those on one;
# g - 1 on one node and across nodes
CENTRES: Final = np.log([0.5, 0.5, 0.05, 0.01, 3.0, 1.0, 0.5, 2.0])
WIDTHS: Final = np.array([1.0, 1.0, 1.5, 1.0, 1.0, 1.0, 0.7, 0.7])
STEEPEST: Final = 9.0  # upper bound of g - 1: beyond it only the longer of T_grad and T_sync counts


class MeasuredSteps(msgspec.Struct, frozen=True):
    """Steps of one kind, as logarithms of seconds. `compute` is one pass without the wait for peers."""

    workers: Floats
    nodes: Floats
    samples: Floats  # of one worker in one pass
    compute: Floats
    step: Floats


class StepModel(msgspec.Struct, frozen=True):
    """Predict how long a step takes with given workers and samples: a model with a prior, fitted to a job's reports.

    The model is Pollux's (OSDI 2021): a pass over m samples takes T_grad = a + b m; the gradients then travel for
    T_sync, 0 with one worker, c + d (n - 2) with n workers on one node, and likewise with larger c and d across nodes.
    The two overlap, so that a step takes (T_grad^g + T_sync^g)^(1/g), with a g of its own across nodes. All is fitted
    as logarithms, where errors are shares. Each parameter has a prior, as wide as jobs differ: a job that has had one
    worker is expected to scale well, and its sigma says how uncertain that is. The fit is least squares with the
    analytic Jacobian; the sigma of a prediction follows from the curvature at the fit (Laplace).
    """

    """The logarithms of the parameters, and their covariance."""

    parameters: Floats
    covariance: Floats

    def pass_s(self, samples: Floats) -> Floats:
        a, b = np.exp(self.parameters[:2])
        return np.asarray(a + b * samples)

    def step_s(self, workers: Floats, nodes: Floats, samples: Floats) -> Floats:
        return np.asarray(np.exp(_predicted(self.parameters, workers, nodes, samples)[1]))

    def sigma(self, workers: Floats, nodes: Floats, samples: Floats) -> Floats:
        """Return the standard deviation of the logarithm of a step's time."""
        slopes = log_slopes(self.parameters, workers, nodes, samples)[1]
        return np.asarray(np.sqrt(np.einsum("ij,jk,ik->i", slopes, self.covariance, slopes) + NOISE**2))


def fit(seen: MeasuredSteps) -> StepModel:
    """Fit a model to at least one measured kind of step. The result depends on these alone, and not on earlier fits."""
    first = float(np.exp(seen.compute[0]))
    centres = CENTRES + np.array([np.log(first), np.log(first / seen.samples[0]), np.log(first), 0, 0, 0, 0, 0])
    where = (seen.workers, seen.nodes, seen.samples)
    told = np.concatenate([seen.compute, seen.step])

    def residuals(x: Floats) -> Floats:
        return np.concatenate([(np.concatenate(_predicted(x, *where)) - told) / NOISE, (x - centres) / WIDTHS])

    def jacobian(x: Floats) -> Floats:
        return np.vstack([np.vstack(log_slopes(x, *where)) / NOISE, np.diag(1 / WIDTHS)])

    found = least_squares(residuals, centres, jacobian, method="lm", ftol=1e-4, xtol=1e-4, max_nfev=50)
    slopes = jacobian(found.x)
    return StepModel(found.x, np.linalg.inv(slopes.T @ slopes))


def _sync(x: Floats, workers: Floats, nodes: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the logarithm of T_sync, the share of it due to workers beyond two, and 1 where it spans nodes, else 0."""
    across = (nodes > 1).astype(float)
    beyond = np.maximum(workers - 2, 0) * np.exp(x[3] + across * x[5])
    return x[2] + across * x[4] + np.log1p(beyond), beyond / (1 + beyond), across


def _predicted(x: Floats, workers: Floats, nodes: Floats, samples: Floats) -> tuple[Floats, Floats]:
    grad = np.log(np.exp(x[0]) + np.exp(x[1]) * samples)
    sync, _, _ = _sync(x, workers, nodes)
    power = 1 + np.minimum(np.exp(np.where(nodes > 1, x[7], x[6])), STEEPEST)
    together = grad + np.logaddexp(0, power * (sync - grad)) / power
    return grad, np.where(workers > 1, together, grad)


def log_slopes(x: Floats, workers: Floats, nodes: Floats, samples: Floats) -> tuple[Floats, Floats]:
    """Return the derivatives of ln T_grad and ln T_step by each parameter: a row for each kind of step."""
    a, b = np.exp(x[0]), np.exp(x[1])
    share = a / (a + b * samples)
    grad = np.log(a + b * samples)
    sync, beyond, across = _sync(x, workers, nodes)
    shape = np.exp(np.where(nodes > 1, x[7], x[6]))
    power = 1 + np.minimum(shape, STEEPEST)
    weight = np.where(workers > 1, 1 / (1 + np.exp(np.clip(-power * (sync - grad), -500, 500))), 0.0)
    together = grad + np.logaddexp(0, power * (sync - grad)) / power
    bend = ((1 - weight) * grad + weight * sync - together) / power
    bend = np.where((workers > 1) & (shape < STEEPEST), bend * shape, 0.0)
    none = np.zeros_like(grad)
    of_grad = np.stack([share, 1 - share, none, none, none, none, none, none], axis=1)
    rest = 1 - weight
    of_step = [rest * share, rest * (1 - share), weight, weight * beyond, weight * across, weight * beyond * across]
    return of_grad, np.stack([*of_step, bend * (1 - across), bend * across], axis=1)


KINDS: Final = 64  # kinds of steps kept of one job: the ones least lately reported are forgotten
RECENT: Final = 0.3  # weight of the newest report of a kind in its running mean
NEWS: Final = 0.02  # a kind that has moved by less than this share is no reason to fit anew
STIRRED: Final = 0.05  # gradient noise that has moved by less than this share is no reason to predict anew


class StepKind(msgspec.Struct, frozen=True):
    workers: int
    nodes: int
    samples: int


@dataclass(slots=True)
class Facts:
    batches: Batches
    steps: dict[StepKind, tuple[float, float]] = field(default_factory=dict)  # ln of a pass and of a step, in seconds
    # the values that the model was fitted with
    fitted: dict[StepKind, tuple[float, float]] = field(default_factory=dict)
    noise: Noise | None = None
    model: StepModel | None = None
    speed: Predicted | None = None


class Analyzer:
    def __init__(self) -> None:
        self._jobs: dict[str, Facts] = {}

    def expect(self, job: str, batches: Batches) -> None:
        self._jobs[job] = Facts(batches)

    def forget(self, job: str) -> None:
        self._jobs.pop(job, None)

    def observe(  # noqa: PLR0913, PLR0917 - what one report says
        self,
        job: str,
        workers: int,
        nodes: int,
        batch: int,
        step_s: float,
        sync_s: float = 0.0,
        grad_sqr: float | None = None,
        grad_var: float | None = None,
    ) -> None:
        """Record a step of one pass with `batch` samples a worker: it took `step_s`, of which it waited `sync_s` for
        peers.
        """
        facts = self._jobs[job]
        if not (0 <= sync_s < step_s < math.inf and 1 <= nodes <= workers and batch >= 1):
            raise ConfigError(
                f"{job} reports a step that cannot be: {workers} workers on {nodes} nodes, {batch} samples each, "
                f"{step_s} s of which {sync_s} s waiting; report seconds above 0"
            )
        kind, told = StepKind(workers, nodes, batch), (math.log(step_s - sync_s), math.log(step_s))
        before = facts.steps.pop(kind, told)
        facts.steps[kind] = (before[0] + RECENT * (told[0] - before[0]), before[1] + RECENT * (told[1] - before[1]))
        while len(facts.steps) > KINDS:
            del facts.steps[next(iter(facts.steps))]
        if grad_sqr is not None and grad_var is not None and grad_sqr >= 0 and grad_var >= 0:
            facts.noise = Noise(grad_sqr, grad_var)
        self._note(facts, kind)

    def speed(self, job: str) -> Speed:
        facts = self._jobs[job]
        if not facts.steps:
            return Guess(max(facts.batches.own, facts.batches.smallest))
        if facts.model is None:
            facts.fitted = dict(facts.steps)
            facts.model = fit(_measured(facts.steps))
            facts.speed = None
        if facts.speed is None:
            tried = frozenset((kind.workers, kind.nodes) for kind in facts.steps)
            facts.speed = Predicted(facts.batches, facts.model, facts.noise, tried)
        return facts.speed

    def _note(self, facts: Facts, kind: StepKind) -> None:
        """Drop the model, or only the prediction, if the report contradicts it."""
        known = facts.fitted.get(kind)
        now = facts.steps[kind]
        if known is None or max(abs(now[0] - known[0]), abs(now[1] - known[1])) > NEWS:
            facts.model = facts.speed = None
        elif facts.speed is not None and not facts.speed.holds(facts.noise, STIRRED):
            facts.speed = None


def _measured(steps: dict[StepKind, tuple[float, float]]) -> MeasuredSteps:
    kinds = sorted(steps, key=lambda kind: (kind.workers, kind.nodes, kind.samples))
    told = np.array([steps[kind] for kind in kinds])
    where = np.array([(kind.workers, kind.nodes, kind.samples) for kind in kinds], dtype=float)
    return MeasuredSteps(where[:, 0], where[:, 1], where[:, 2], told[:, 0], told[:, 1])
