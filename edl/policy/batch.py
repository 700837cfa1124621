"""How large the mini-batch of a step is with so many workers, and which part of it each worker takes: pure arithmetic.

- `fixed_local`: each worker takes what the script says, so the global batch grows with the workers, up to a maximum;
  from there on it stays, and is shared out (Or, Zhang and Freedman, MLSys 2020);
- `fixed_global`: all together take what the script says, however many they are;
- a function of the user's, from the number of workers to the global batch.

A worker whose part is more than its memory allows takes it in several equal bites, and its gradients add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from edl.errors import ConfigError


class Rule(StrEnum):
    """What stays fixed when the number of workers changes."""

    LOCAL = "fixed_local"
    GLOBAL = "fixed_global"
    TABLE = "table"


class BatchPolicy(msgspec.Struct, frozen=True):
    """The rule and its numbers; equal on all workers."""

    rule: Rule = Rule.LOCAL
    most: int = 0  # of the global batch; 0: no bound (LOCAL)
    table: tuple[tuple[int, int], ...] = ()  # what the user's function said: (workers, global batch), ascending
    bite: int = 0  # most samples at once that fit into a worker's memory; 0: no bound

    def global_batch(self, size: int, given: int) -> int:
        """Samples of a step with `size` workers; `given` is the script's own number: of a worker, or of all."""
        match self.rule:
            case Rule.GLOBAL:
                return given
            case Rule.LOCAL:
                return min(size * given, self.most) if self.most else size * given
            case Rule.TABLE:
                return self._looked_up(size, given)

    def _looked_up(self, size: int, given: int) -> int:
        known = [batch for workers, batch in self.table if workers <= size]
        return known[-1] if known else size * given


def shares(batch: int, size: int) -> tuple[int, ...]:
    """Of `batch` samples, what each rank takes: as even as can be, the larger parts first."""
    return tuple(batch // size + (rank < batch % size) for rank in range(size))


def weighted_shares(batch: int, paces: Sequence[float]) -> tuple[int, ...]:
    """Of `batch` samples, what each rank takes when it works at such a pace: all should be done at the same time.

    Nobody gets nothing, as long as there are as many samples as workers; what rounding leaves goes to those who came
    off worst by it.
    """
    size, total = len(paces), sum(paces)
    if size == 0 or total <= 0 or batch < size or min(paces) <= 0:
        return shares(batch, size) if size else ()
    exact = [batch * pace / total for pace in paces]
    found = [max(1, int(part)) for part in exact]
    while (left := batch - sum(found)) != 0:
        step = 1 if left > 0 else -1
        order = sorted(range(size), key=lambda rank: (step * (found[rank] - exact[rank]), rank))
        for rank in order[: abs(left)]:
            if found[rank] + step >= 1:
                found[rank] += step
    return tuple(found)


def bites(share: int, most: int) -> tuple[int, ...]:
    """A worker's part of a step in as few equal bites as its memory allows, the larger ones first."""
    if share <= 0 or not most or share <= most:
        return (share,)
    count = -(-share // most)
    return shares(share, count)


def check(policy: BatchPolicy) -> None:
    """Raises ConfigError for numbers that contradict each other."""
    for name in ("most", "bite"):
        if getattr(policy, name) < 0:
            raise ConfigError(f"{name}={getattr(policy, name)}: must not be negative")
    if policy.rule is Rule.TABLE and not policy.table:
        raise ConfigError("a batch policy of your own must say the batch of at least one number of workers")
    if any(batch < workers for workers, batch in policy.table):
        raise ConfigError("a batch policy of your own must give each worker at least one sample")
