"""The course of a simulated job's training. All jobs that train alike share a course.

Where the batch of a job may change, steps take measured times, and the gradients' measured noise says how much a step
is worth. Work is counted in steps of the smallest validated batch. A step of a batch that is `scale` times larger is
worth (var + sqr) / (var / scale + sqr) of them, with the gradients' statistics of the epoch (Pollux, OSDI 2021).

On a measured placement, times are linear between its batches. Elsewhere they are linear between all measured points of
(nodes, workers, batch of a worker), as in the simulator that the tables were published with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from edl.cluster.views import Aim, Provenance, Rates

# The plainest course is a number of iterations at one batch, and a table of iterations per second by the number of
# workers.


Shape = tuple[int, ...]  # workers on each node of the job, in the order in which the job got the nodes


class Step(msgspec.Struct, frozen=True):
    seconds: float
    batch: int  # of all workers together; 0: the trace does not say
    pass_batch: int = 0  # samples of one worker at a time
    pass_s: float = 0.0  # the last pass of a step, including the wait for peers
    sync_s: float = 0.0  # the part of `pass_s` in which it waits for peers


class GradientNoise(msgspec.Struct, frozen=True):
    sqr: float
    var: float


class BatchSpan(msgspec.Struct, frozen=True):
    """The batches that a job may have: of all workers together, and of one worker at a time."""

    own: int  # the batch that the job was written for: work is counted in steps of this batch
    smallest: int
    largest: int
    smallest_pass: int
    largest_pass: int


class Course(Protocol):
    """The training of a whole job, which is `total` work. A batch of 0 is the job's own."""

    @property
    def total(self) -> float: ...

    @property
    def span(self) -> BatchSpan | None:
        """The batches that the job may have; None if its batch is fixed."""

    def step(self, shape: Shape, batch: int) -> Step:
        """Return the step of workers placed in `shape`, at `batch` or the nearest batch that they can have."""

    def steps(self, done: float, batch: int) -> float:
        """Return the number of steps at that batch from the beginning until `done` work is done."""

    def done(self, steps: float, batch: int) -> float:
        """Return the work done after that many steps; the inverse of `steps`."""

    def noise(self, done: float, batch: int) -> GradientNoise | None:
        """Return the gradients' statistics; None if the trace has none."""

    def rates(self, done: float, most: int, devices: int, aim: Aim, batch: int) -> Rates:
        """Return the true rates at that point, with 1 to `most` workers. `batch` is the batch that the job's owner
        asked for.
        """


class Iterations:
    """Course of a job with a fixed batch. `rates` maps workers to iterations per second, and is linear between two
    sizes.
    """

    span: BatchSpan | None = None

    def __init__(self, total: float, rates: Mapping[int, float], batch: int) -> None:
        known = dict(sorted((size, rate) for size, rate in rates.items() if rate > 0))
        self.total = total
        self._batch = batch
        self._sizes = np.array(list(known), dtype=float)
        self._rates = np.array(list(known.values()), dtype=float)
        self._known: Rates | None = None

    @property
    def sizes(self) -> tuple[int, int]:
        """The fewest and the most workers of the table."""
        return int(self._sizes[0]), int(self._sizes[-1])

    def rate(self, workers: int) -> float:
        return float(np.interp(workers, self._sizes, self._rates))

    def step(self, shape: Shape, batch: int) -> Step:  # noqa: ARG002 - it has one batch
        workers = sum(shape)
        seconds = 1 / self.rate(workers)
        return Step(seconds, self._batch, -(-self._batch // workers), seconds, 0.0)

    def steps(self, done: float, batch: int) -> float:  # noqa: ARG002
        return done

    def done(self, steps: float, batch: int) -> float:  # noqa: ARG002
        return min(steps, self.total)

    def noise(self, done: float, batch: int) -> GradientNoise | None:  # noqa: ARG002
        return None

    def rates(self, done: float, most: int, devices: int, aim: Aim, batch: int) -> Rates:  # noqa: ARG002
        if self._known is None or len(self._known.progress) != most:
            sizes = np.arange(1, most + 1)
            rates = np.asarray(np.interp(sizes, self._sizes, self._rates), dtype=np.float64)
            rates[(sizes < self._sizes[0]) | (sizes > self._sizes[-1])] = 0.0
            self._known = Rates(
                progress=rates,
                throughput=rates * float(max(self._batch, 1)),
                batch=np.full(most, self._batch, dtype=np.int64),
                sigma=np.zeros(most),
                provenance=(Provenance.ORACLE,) * most,
            )
        return self._known


Points = Mapping[
    tuple[int, int, int], tuple[float, float]
]  # nodes, workers, batch of a worker -> step and sync seconds

MOST_NODES: Final = 16  # most nodes of a measurement


class Timing:
    """The times of one application. `placements` has the measurements of each placement, by batch of a worker; `others`
    has measurements at larger sizes.
    """

    def __init__(self, placements: Mapping[Shape, tuple[Floats, Floats, Floats]], others: Points) -> None:
        self._placements = dict(placements)
        self._others = dict(others)
        self._between: tuple[Any, Any] | None = None
        self._smallest = min(float(batches[0]) for batches, _, _ in placements.values())
        self._largest = max(float(batches[-1]) for batches, _, _ in placements.values())

    @property
    def passes(self) -> tuple[int, int]:
        """The smallest and the largest batch of one worker that was measured."""
        return int(self._smallest), int(self._largest)

    @property
    def node_size(self) -> int:
        """The most workers on one node."""
        return max(max(shape) for shape in self._placements)

    def times(self, shape: Shape, batches: Floats, *, nearest: bool = False) -> tuple[Floats, Floats]:
        """Return the seconds of a step and of its sync for each batch of a worker; NaN where no measurement is near.

        With `nearest`, the nearest measurement is taken instead.
        """
        found = self._placements.get(rotated(shape))
        if found is not None:
            known, step, sync = found
            outside = np.zeros(len(batches), bool) if nearest else (batches < known[0]) | (batches > known[-1])
            return (
                np.where(outside, np.nan, np.interp(batches, known, step)),
                np.where(outside, np.nan, np.interp(batches, known, sync)),
            )
        return self._scattered(shape, batches, nearest)

    def _scattered(self, shape: Shape, batches: Floats, nearest: bool) -> tuple[Floats, Floats]:
        linear, closest = self._interpolators()
        points = np.column_stack(
            [np.full(len(batches), min(len(shape), MOST_NODES)), np.full(len(batches), sum(shape)), batches]
        )
        values = np.asarray(linear(points))
        if nearest and np.isnan(values).any():
            lost = np.isnan(values[:, 0])
            values[lost] = closest(points[lost])
        return values[:, 0], values[:, 1]

    def _interpolators(self) -> tuple[Any, Any]:
        """Make the interpolators at their first use: a small cluster never needs them."""
        if self._between is None:
            from scipy.interpolate import LinearNDInterpolator, NearestNDInterpolator

            sums: dict[tuple[int, int, int], list[tuple[float, float]]] = {}
            for shape, (batches, step, sync) in self._placements.items():
                for batch, *seconds in zip(batches, step, sync, strict=True):
                    sums.setdefault((len(shape), sum(shape), int(batch)), []).append((seconds[0], seconds[1]))
            means = [(point, tuple(np.mean(sums[point], axis=0))) for point in sorted(sums)]
            known = [*means, *self._others.items()]
            points = np.array([point for point, _ in known], dtype=float)
            values = np.array([seconds for _, seconds in known], dtype=float)
            self._between = LinearNDInterpolator(points, values), NearestNDInterpolator(points, values, rescale=True)
        return self._between


def rotated(shape: Shape) -> Shape:
    """Return the smallest rotation of a shape: a ring looks the same from each of its nodes."""
    return min(shape[i:] + shape[:i] for i in range(len(shape)))


Floats = NDArray[np.float64]

TRIED: Final = 50  # batches between the smallest and the largest, in geometric steps
NEAR: Final = 1e-8  # tolerance when samples are rounded up


class Validation(msgspec.Struct, frozen=True):
    """The statistics of a whole training at one batch, epoch by epoch."""

    progress: Floats
    sqr: Floats
    var: Floats


class Epochs:
    def __init__(self, timing: Timing, validation: Mapping[int, Validation], span: BatchSpan) -> None:
        self.span: BatchSpan | None = span
        self._span = span
        self.timing = timing
        self._validation = dict(validation)
        epochs = min(len(one.progress) for one in validation.values())
        self._ends = np.concatenate(
            [[0.0], np.min([validation[batch].progress[:epochs] for batch in validation], axis=0)]
        )
        self.total = float(self._ends[-1])
        self._batches = np.array(sorted(validation), dtype=float)
        self._sqr = np.array([validation[batch].sqr[:epochs] for batch in sorted(validation)])
        self._var = np.array([validation[batch].var[:epochs] for batch in sorted(validation)])
        self._curves: dict[int, Floats] = {}
        self._steps: dict[tuple[Shape, int], Step] = {}
        self._choices: dict[tuple[int, int, int], tuple[Floats, Floats]] = {}
        self._rates: dict[tuple[int, int, int, Aim, int], Rates] = {}

    @property
    def node_size(self) -> int:
        return self.timing.node_size

    def keeping(self, batch: int) -> Epochs:
        """Return the course of a job that keeps its batch."""
        return Epochs(self.timing, self._validation, msgspec.structs.replace(self._span, smallest=batch, largest=batch))

    # ------------------------------------------------------------------------------------------------ the truth

    def step(self, shape: Shape, batch: int) -> Step:
        key = (shape, batch)
        if key not in self._steps:
            workers = sum(shape)
            one, passes = (int(part) for part in self._split(np.array(float(batch or self._span.own)), workers))
            times = self.timing.times(shape, np.array([float(one)]), nearest=True)
            pass_s, sync_s = float(times[0][0]), float(times[1][0])
            seconds = pass_s + (passes - 1) * (pass_s - sync_s)
            self._steps[key] = Step(seconds, one * passes * workers, one, pass_s, sync_s)
        return self._steps[key]

    def steps(self, done: float, batch: int) -> float:
        return float(np.interp(done, self._ends, self._curve(batch)))

    def done(self, steps: float, batch: int) -> float:
        return float(np.interp(steps, self._curve(batch), self._ends))

    def noise(self, done: float, batch: int) -> GradientNoise | None:
        sqr, var = self._noise(self._epoch(done), np.array(float(batch)))
        return GradientNoise(float(sqr), float(var))

    def rates(self, done: float, most: int, devices: int, aim: Aim, batch: int) -> Rates:
        epoch = self._epoch(done)
        key = (epoch, most, devices, aim, (batch or self._span.own) if aim is Aim.GIVEN else 0)
        if key not in self._rates:
            self._rates[key] = self._work_out(*key)
        return self._rates[key]

    # ---------------------------------------------------------------------------------------------------- computations

    def _epoch(self, done: float) -> int:
        return min(int(np.searchsorted(self._ends, done, side="right")) - 1, len(self._ends) - 2)

    def _curve(self, batch: int) -> Floats:
        """Return the steps at that batch until each epoch's end."""
        if batch not in self._curves:
            epochs = np.arange(len(self._ends) - 1)
            gains = np.array([self._gain(int(epoch), np.array(float(batch or self._span.own))) for epoch in epochs])
            self._curves[batch] = np.concatenate([[0.0], np.cumsum(np.diff(self._ends) / gains)])
        return self._curves[batch]

    def _noise(self, epoch: int, batch: Floats) -> tuple[Floats, Floats]:
        return (
            np.interp(batch, self._batches, self._sqr[:, epoch]),
            np.interp(batch, self._batches, self._var[:, epoch]),
        )

    def _gain(self, epoch: int, batch: Floats) -> Floats:
        sqr, var = self._noise(epoch, batch)
        return np.asarray((var + sqr) / (var * self._span.own / batch + sqr))

    def _split(self, batch: Floats, workers: int) -> tuple[Floats, Floats]:
        """Return the batch of one pass of a worker, and the passes of a worker in a step."""
        share = np.ceil(batch / workers - NEAR)
        passes = np.ceil(share / self._span.largest_pass - NEAR)
        if workers == 1:  # the noise of a batch is measured between parts of it
            passes = np.maximum(passes, np.where(batch > self._span.own, 2, 1))
        one = np.ceil(share / passes - NEAR)
        return np.maximum(np.minimum(one, np.floor(self._span.largest / (workers * passes))), 1), passes

    def _work_out(self, epoch: int, most: int, devices: int, aim: Aim, batch: int) -> Rates:
        progress, throughput, chosen = np.zeros(most), np.zeros(most), np.zeros(most, dtype=np.int64)
        for at in range(most):
            batches, seconds = self._choice(at + 1, devices, batch)
            if not len(batches):
                continue
            gains = self._gain(epoch, batches) / seconds
            best = int(np.argmax(batches / seconds if aim is Aim.THROUGHPUT else gains))
            progress[at], throughput[at] = gains[best], batches[best] / seconds[best]
            chosen[at] = batches[best]
        return Rates(
            progress=progress,
            throughput=throughput,
            batch=chosen,
            sigma=np.zeros(most),
            provenance=(Provenance.ORACLE,) * most,
        )

    def _choice(self, workers: int, devices: int, batch: int) -> tuple[Floats, Floats]:
        """Return the batches that so many workers can have, packed on nodes of `devices` devices, and the seconds of a
        step with each.

        A `batch` of 0 means all batches of the span.
        """
        key = (workers, devices, batch)
        if key not in self._choices:
            span = self._span
            if not batch:
                least = max(span.smallest, span.smallest_pass * workers)
                wanted = np.geomspace(least, span.largest, TRIED) if least <= span.largest else np.empty(0)
            else:
                wanted = np.array([float(batch)])
            one, passes = self._split(wanted, workers)
            full, rest = divmod(workers, devices)
            shape = (devices,) * full + ((rest,) if rest else ())
            step, sync = self.timing.times(shape, one)
            seconds = step + (passes - 1) * (step - sync)
            fits = ~np.isnan(seconds) & (one >= span.smallest_pass) & (one <= span.largest_pass)
            self._choices[key] = (one * passes * workers)[fits], seconds[fits]
        return self._choices[key]


def most_workers(span: BatchSpan, batch: int) -> int:
    return max(1, math.floor(batch / span.smallest_pass))
