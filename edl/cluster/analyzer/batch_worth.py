"""The worth of a larger batch: the gradient noise scale (McCandlish et al. 2018), as Pollux uses it.

With B samples a step makes as much progress as `gain` steps with the job's own batch B0:

    gain = (var + sqr) / (var / (B / B0) + sqr)

Here sqr is the squared norm of the true gradient, and var the variance of the gradient of one batch B0.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray


class Noise(msgspec.Struct, frozen=True):
    """The newest gradient noise that a job has reported, averaged over its steps since the report before."""

    sqr: float
    var: float

    def gain(self, scale: NDArray[np.float64]) -> NDArray[np.float64]:
        below = self.var / scale + self.sqr
        return np.where(below > 0, (self.var + self.sqr) / np.maximum(below, 1e-300), 1.0)
