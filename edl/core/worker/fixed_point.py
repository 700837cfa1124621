"""Sums that have no order: gradients as whole numbers of 32 bits, with a scale for each tensor that all workers know.

A floating-point sum depends on how many add up, and in which order. A sum of whole numbers does not. So each virtual
worker's gradient is rounded to multiples of one unit, and these are added up: in any ring, in any grouping, the same.

The unit follows from an *exponent* of the tensor: what is added is below two to its power. It is known before the sum,
as it follows from the sum of the step before (`following`), with `HEADROOM` bits, or more where there are many virtual
workers, for one whose gradient is larger than the mean of all. Where that does not suffice all are told with the sum,
agree on the largest exponent that any virtual worker needs (`needed`), and compute the step again with it.

Owns: that arithmetic. Does not own: rounding and adding up tensors (the adapters), nor computing a step again
(`edl.trainer.virtual_steps`).
"""

from __future__ import annotations

import math
from typing import Final

BITS: Final = 30  # of a sum, whose sign is the 32nd; one is left for rounding up
HEADROOM: Final = 6  # bits, at least, between the mean of a step before and the largest gradient of one virtual worker
SMALLEST: Final = -96  # below that, units would leave the range of 32-bit floats
FALL: Final = 2  # bits a step, at most, by which an exponent becomes smaller
ABSENT: Final = -1000  # says that nothing is to be added


def room(virtual: int) -> int:
    """Return the bits of what one of so many virtual workers adds."""
    return BITS - (virtual - 1).bit_length()


def exponent_of(largest: float) -> int:
    """Return the smallest exponent such that `largest` is below two to its power."""
    return max(SMALLEST, math.frexp(largest)[1]) if largest else SMALLEST


def needed(largest: float) -> int:
    """Return the exponent for a tensor whose scale did not suffice: with little headroom, as it is known."""
    return exponent_of(largest) + 1


def fits(largest: float, exponent: int) -> bool:
    return exponent_of(largest) <= exponent


def following(mean: float, before: int, virtual: int) -> int:
    """Return the exponent of the next step, by the largest element of this step's mean: one of many virtual workers may
    have given all of it.
    """
    return max(exponent_of(mean) + max(HEADROOM, (virtual - 1).bit_length()), before - FALL)


def units(exponent: int, virtual: int) -> float:
    """Return the number of units in 1.0: a power of two."""
    return 2.0 ** (room(virtual) - exponent)
