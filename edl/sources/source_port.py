"""The interface of a source whose samples are records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]


class Source(Protocol):
    """Records with the numbers 0 to len - 1. Only one thread at a time may call."""

    @property
    def fingerprint(self) -> str:
        """A short text that is equal on all workers that see the same data, wherever it lies for each of them."""

    def __len__(self) -> int: ...

    def read(self, ids: Numbers | Sequence[int]) -> list[Any]:
        """Return the records with these numbers, in this order; the caller may change them. Raises DataError."""
