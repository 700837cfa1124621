"""The course of a simulated job's training. All jobs that train alike share a course.

The plainest course is a number of iterations at one batch, and a table of iterations per second by the number of
workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec
import numpy as np

from edl.cluster.views import Aim, Provenance, Rates

Shape = tuple[int, ...]  # workers on each node of the job, in the order in which the job got the nodes


class Step(msgspec.Struct, frozen=True):
    """A step of a job, with its true times."""

    seconds: float
    batch: int  # of all workers together; 0: the trace does not say
    pass_batch: int = 0  # samples of one worker at a time
    pass_s: float = 0.0  # the last pass of a step, including the wait for peers
    sync_s: float = 0.0  # the part of `pass_s` in which it waits for peers


class GradientNoise(msgspec.Struct, frozen=True):
    """The statistics of a step's gradients."""

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
    """The course of such a job. `rates` maps workers to iterations per second, and is linear between two sizes."""

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
