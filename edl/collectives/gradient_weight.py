"""The weight of this worker's gradients in the ring's average, and whether any worker's count.

Owns: these two values. Does not own: applying it (the adapters), nor computing it from the data (`edl.trainer`).
"""

from __future__ import annotations

import math


class Weight:
    """Samples of this worker divided by samples of all workers; equal for all workers until `set` is called."""

    def __init__(self) -> None:
        self._weight: float | None = None
        self.weightless = False  # no worker has samples: whatever gradients are, there is no update (I13)

    def set(self, weight: float, *, weightless: bool = False) -> None:
        if not 0.0 <= weight <= 1.0:
            raise ValueError(f"a share is between 0 and 1, not {weight}")
        self._weight, self.weightless = weight, weightless

    def factor(self, size: int) -> float:
        """Return the factor for gradients by which their average over `size` workers becomes the weighted sum.

        Exactly 1.0 in the even case, so that callers can skip the multiplication.
        """
        if self._weight is None or size == 0:
            return 1.0
        factor = self._weight * size
        return 1.0 if math.isclose(factor, 1.0, rel_tol=1e-12) else factor
