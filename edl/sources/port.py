"""What the rest of edl needs of a source whose samples are records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]


class Source(Protocol):
    """Records that have numbers, 0 to len - 1. Called by one thread at a time."""

    @property
    def fingerprint(self) -> str:
        """Short, and equal on all workers that see the same data, wherever it lies for each of them."""

    def __len__(self) -> int: ...

    def read(self, ids: Numbers | Sequence[int]) -> list[Any]:
        """The records with these numbers, in this order; each is the caller's own. Raises DataError."""
