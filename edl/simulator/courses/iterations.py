"""Jobs with a number of iterations at one batch, and a table of the iterations per second by the number of workers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edl.cluster.views import Aim, Provenance, Rates
from edl.simulator.courses.course import BatchSpan, GradientNoise, Shape, Step


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
