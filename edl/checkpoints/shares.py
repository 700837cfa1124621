"""Which bytes of which tensors each worker writes.

Owns: cutting the state, equal on all workers, into as many parts as there are workers, of nearly the same size. Does
not own: the form of a part (`edl.checkpoints.layout`).

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
    """For each part what lies in it, in this order. The same everywhere for the same tensors."""
    row = sorted((tensor for tensor in tensors if tensor.bytes), key=lambda tensor: -tensor.element_bytes)
    begins = list(itertools.accumulate((tensor.bytes for tensor in row), initial=0))
    wanted = [begins[-1] * number // parts for number in range(parts)]
    found: list[list[Slice]] = [[] for _ in range(parts)]
    number = 0  # of the part in which what comes next lies
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
    """Where in a tensor of `size` bytes, which begins at `begin` of the row, it is cut for that place of the row."""
    if wanted >= begin + size:
        return size
    return max(0, wanted - begin) // ALIGNED * ALIGNED
