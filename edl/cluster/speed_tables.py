"""Speeds that need no fit: a table of measured rates, and a guess where nothing is known."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edl.cluster.views import Aim, Provenance, Rates
from edl.errors import ConfigError

Floats = NDArray[np.float64]


class Table:
    """A table of steps a second at the job's own batch, by workers: linear between two sizes, constant beyond the last.

    A size at which the table has no rate (0) is not used.
    """

    def __init__(
        self, steps_s: Mapping[int, float], batch: int = 0, provenance: Provenance = Provenance.MEASURED
    ) -> None:
        known = {size: rate for size, rate in sorted(steps_s.items()) if rate > 0}
        if not known or min(known) < 1:
            raise ConfigError(f"a table of speeds needs rates above 0 for 1 worker or more, not {dict(steps_s)}")
        self._sizes = np.array(list(known), dtype=float)
        self._steps = np.array(list(known.values()), dtype=float)
        self._batch, self._provenance = batch, provenance
        self._last: Rates | None = None

    def rates(self, most: int, devices: int, aim: Aim = Aim.PROGRESS) -> Rates:  # noqa: ARG002 - one batch, any node
        if self._last is None or len(self._last.progress) != most:
            sizes = np.arange(1, most + 1, dtype=float)
            steps = np.interp(sizes, self._sizes, self._steps) * np.minimum(sizes / self._sizes[0], 1)
            self._last = Rates(
                progress=steps,
                throughput=steps * max(self._batch, 1),
                batch=np.full(most, self._batch, dtype=np.int64),
                sigma=np.zeros(most),
                provenance=(self._provenance,) * most,
            )
        return self._last


class Guess:
    """A guess where no speed is known: each worker adds as much as the first, one unit of work a second."""

    def __init__(self, batch: int = 0) -> None:
        self._batch = batch

    def rates(self, most: int, devices: int, aim: Aim = Aim.PROGRESS) -> Rates:  # noqa: ARG002 - it is a guess
        sizes = np.arange(1, most + 1, dtype=float)
        return Rates(
            progress=sizes,
            throughput=sizes,
            batch=np.full(most, self._batch, dtype=np.int64),
            sigma=np.log(sizes) + 1,
            provenance=(Provenance.GUESSED,) * most,
        )
