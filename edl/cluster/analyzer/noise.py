"""What a larger batch is worth: the gradient noise scale (McCandlish et al. 2018), as Pollux uses it.

With B samples a step makes as much progress as `gain` steps with the job's own batch B0:
gain = (var + sqr) / (var / (B / B0) + sqr), sqr the squared norm of the true gradient, var the variance of one of B0.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

RECENT: Final = 0.3  # weight of the newest report in the averages: noise grows while a job trains


class Noise(msgspec.Struct, frozen=True):
    """Averages of what a job reported of its gradients."""

    sqr: float
    var: float

    def and_then(self, sqr: float, var: float, weight: float = RECENT) -> Noise:
        return Noise(self.sqr + weight * (sqr - self.sqr), self.var + weight * (var - self.var))

    def gain(self, scale: NDArray[np.float64]) -> NDArray[np.float64]:
        below = self.var / scale + self.sqr
        return np.where(below > 0, (self.var + self.sqr) / np.maximum(below, 1e-300), 1.0)
