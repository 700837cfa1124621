"""The assignment of the state's bytes to the workers that write them.

Owns: cutting the state, equal on all workers, into as many parts as there are workers, of nearly the same size. Does
not own: the form of a part (`edl.checkpoints.part_layout`).

All tensors stand in one row, those with the longest elements first, and the row is cut at equal distances. A cut is
moved back to a multiple of `ALIGNED` in its tensor: small tensors stay whole, and no part is more than `ALIGNED` bytes
larger or smaller than it should be.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from edl.checkpoints.manifest import Slice, StoredTensor

ALIGNED = 4096


def shares(tensors: Sequence[StoredTensor], parts: int) -> tuple[tuple[Slice, ...], ...]:
    """Return the slices of each part, in order. The result depends on the tensors alone, so all workers cut alike."""
    row = sorted((tensor for tensor in tensors if tensor.bytes), key=lambda tensor: -tensor.element_bytes)
    begins = list(itertools.accumulate((tensor.bytes for tensor in row), initial=0))
    wanted = [begins[-1] * number // parts for number in range(parts)]
    found: list[list[Slice]] = [[] for _ in range(parts)]
    number = 0  # number of the part that takes the next bytes
    for tensor, begin in zip(row, begins, strict=False):
        at = 0
        while at < tensor.bytes:
            while number + 1 < parts and _cut(wanted[number + 1], begin, tensor.bytes) <= at:
                number += 1
            end = _cut(wanted[number + 1], begin, tensor.bytes) if number + 1 < parts else tensor.bytes
            found[number].append(Slice(tensor.name, at, end - at))
            at = end
    return tuple(map(tuple, found))


def _cut(wanted: int, begin: int, size: int) -> int:
    """Return the offset at which a tensor of `size` bytes, which begins at `begin` in the row, is cut for a cut of the
    row at `wanted`.
    """
    if wanted >= begin + size:
        return size
    return max(0, wanted - begin) // ALIGNED * ALIGNED
