"""Rounding of gradients in main memory to whole numbers, and their mean: passes over what parts of a step give.

Owns: these passes, in C (`_rounding.c`) where edl was installed with a compiler, else by numpy, with the same bits.
Does not own: the unit (`edl.core.worker.fixed_point`), nor tensors on a device (the adapters).
"""

from __future__ import annotations

import contextlib
import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

AT_ONCE: Final = 1 << 14  # elements that stay in a processor's cache from one operation to the next

Reals = NDArray[np.float32]
Wholes = NDArray[np.int32]


def add_rounded(source: Reals, target: Wholes, factor: float, is_first: bool, /) -> float:
    """Add `source` times `factor`, rounded to the nearest, to `target`, or put it there if it `is_first`. Return the
    largest absolute value of `source`; nan if it has any.
    """
    found, source, target = 0.0, source.reshape(-1), target.reshape(-1)  # views: both lie in one piece
    for start in range(0, source.size, AT_ONCE):
        piece, into = source[start : start + AT_ONCE], target[start : start + AT_ONCE]
        found = _larger(found, piece)
        with np.errstate(invalid="ignore", over="ignore"):  # what does not fit is noted, and computed again
            rounded = np.rint(piece * np.float32(factor)).astype(np.int32)
        np.copyto(into, rounded) if is_first else np.add(into, rounded, out=into)
    return found


def add_all_rounded(
    sources: list[Reals], targets: list[Wholes], factors: list[float], is_first: bool, /
) -> list[float]:
    """Do as `add_rounded` does for each of many, and return the largest of each."""
    return [add_rounded(*each, is_first) for each in zip(sources, targets, factors, strict=True)]


def mean_of(source: Wholes, target: Reals, factor: float, /) -> float:
    """Put `source` times `factor` into `target`, and return the largest absolute value there."""
    found, source, target = 0.0, source.reshape(-1), target.reshape(-1)
    for start in range(0, source.size, AT_ONCE):
        into = target[start : start + AT_ONCE]
        np.multiply(source[start : start + AT_ONCE].astype(np.float32), np.float32(factor), out=into)
        found = _larger(found, into)
    return found


def _larger(found: float, piece: NDArray[Any]) -> float:
    low, high = float(piece.min()), float(piece.max())
    return math.nan if math.isnan(found) or math.isnan(low) else max(found, -low, high)


with contextlib.suppress(ImportError):  # without a compiler those above serve
    from edl.core.worker._rounding import add_all_rounded, add_rounded, mean_of  # noqa: F401 - in their place
