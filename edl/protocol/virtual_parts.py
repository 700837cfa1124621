"""Position alone says which part of a step each virtual worker computes, and which parts a worker computes.

Owns: that arithmetic, the same for leaders, workers and verifiers. Does not own: which positions a step has
(`edl.core.data.sample_ledger`), nor computing parts (`edl.trainer.virtual_steps`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate


def even_sizes(count: int, parts: int) -> list[int]:
    """Cut `count` things into `parts` runs as even as can be, larger ones first."""
    return [count // parts + (part < count % parts) for part in range(parts)]


def held_by(rank: int, size: int, virtual: int) -> tuple[int, int]:
    """Return the virtual workers first .. last-1 that the worker of this rank computes; none, of more workers than
    virtual ones, for the last ranks.
    """
    bounds = [0, *accumulate(even_sizes(virtual, size))]
    return bounds[rank], bounds[rank + 1]


def lane_of(shard: int, virtual: int) -> int:
    """Return the virtual worker whose a shard of a stream is, in each epoch."""
    return shard % virtual


def bounds_of(samples: int, batch: int, virtual: int) -> Sequence[int]:
    """Return where the part of each virtual worker begins in a step of `samples`, and at the end where the last ends.

    A step of a whole `batch` is cut evenly. A shorter one fills as many of the same parts, so that shapes stay; the
    rest is one part more, or goes with the part before where it is a single sample, which batch norm cannot train on.
    """
    found = [min(bound, samples) for bound in accumulate(even_sizes(batch, virtual), initial=0)]
    if samples < batch:
        last = next(index for index, bound in enumerate(found) if bound == samples)
        if last > 1 and samples - found[last - 1] == 1:
            found[last - 1] = samples
    return found
