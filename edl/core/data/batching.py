"""Compute the global batch of a step for a number of workers, and each worker's part of it: pure arithmetic.

- `fixed-local`: each worker takes what the script says, so the batch of all grows with the workers, up to a maximum;
  from there on it stays, and is shared out (Or, Zhang and Freedman, MLSys 2020);
- `fixed-global`: all together take what the script says, however many they are;
- a number that people ask for while the job trains: all together take that, however many they are;
- a table that a function of the user's has filled: number of workers -> batch of all.

Owns: the numbers. Does not own: from which step on they hold (`edl.core.data.lease_recut`), nor what the user typed
(`edl.policy.policy_engine`).
"""

from __future__ import annotations

from collections.abc import Sequence

from edl.protocol.data_nouns import even_sizes
from edl.protocol.job_policy import Batching, BatchRule


def batch_of_all(batching: Batching, size: int, given: int) -> int:
    """Return the samples of a step with `size` workers; `given` is the script's own number: of a worker, or of all."""
    match batching.rule:
        case BatchRule.GLOBAL:
            return given
        case BatchRule.LOCAL:
            return min(size * given, batching.most) if batching.most else size * given
        case BatchRule.ASKED:
            return batching.most
        case BatchRule.TABLE:
            known = [batch for workers, batch in batching.table if workers <= size]
            return known[-1] if known else size * given


def in_force(policy: Batching, asked: int) -> Batching:
    """Prefer a size that people asked for (`asked` > 0) to the job's own rule."""
    return Batching(BatchRule.ASKED, most=asked) if asked else policy


def even_shares(batch: int, size: int) -> tuple[int, ...]:
    """Split `batch` samples by rank as evenly as can be, larger parts first."""
    return tuple(even_sizes(batch, size))


def weighted_shares(batch: int, paces: Sequence[float]) -> tuple[int, ...]:
    """Split `batch` samples by rank in proportion to paces, so that all finish at the same time.

    Each rank gets at least two, or one where there are not twice as many samples as workers: batch norm cannot train on
    one. Ranks that lose most by rounding get the remaining samples.
    """
    size, total = len(paces), sum(paces)
    if size == 0 or total <= 0 or batch < size or min(paces) <= 0:
        return even_shares(batch, size) if size else ()
    least = min(2, batch // size)
    exact = [batch * pace / total for pace in paces]
    found = [max(least, int(part)) for part in exact]
    while (left := batch - sum(found)) != 0:
        step = 1 if left > 0 else -1
        able = (rank for rank in range(size) if found[rank] + step >= least)
        for rank in sorted(able, key=lambda rank: (step * (found[rank] - exact[rank]), rank))[: abs(left)]:
            found[rank] += step
    return tuple(found)


def microbatches(share: int, most: int) -> tuple[int, ...]:
    """Split a worker's part of a step into as few equal microbatches as its memory allows, the larger ones first."""
    if share <= 0 or not most or share <= most:
        return (share,)
    count = -(-share // most)
    return even_shares(share, count)
