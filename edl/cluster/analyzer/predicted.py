"""Predict a job's speed at each size by its models: the best batch there, and how uncertain the figure is.

What a larger batch is worth follows from the gradient noise scale (McCandlish et al. 2018), as Pollux uses it. With B
samples a step makes as much progress as `gain` steps with the job's own batch B0:

    gain = (var + sqr) / (var / (B / B0) + sqr)

Here sqr is the squared norm of the true gradient, and var the variance of the gradient of one batch B0.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from edl.cluster.analyzer.throughput import StepModel
from edl.cluster.views import Aim, Provenance, Rates


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
    """The batch sizes that a job may train with."""

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
