"""Faults of a simulated cluster: nodes that fail and come back, and nodes that are slow for a while.

Each node has fault times of its own, drawn from the seed and its name: the same seed gives the same faults under every
policy.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec


class Faults(msgspec.Struct, frozen=True):
    """A kind of fault: each node has one every `mean_s` seconds on average, which lasts `length_s`. A `mean_s` of 0
    means none.
    """

    mean_s: float = 0.0
    length_s: float = 0.0
    much: float = 0.0  # failures: seconds of training that a job loses; stragglers: how many times longer steps take

    def times(self, seed: int, kind: str, node: str) -> Iterator[tuple[float, float]]:
        """Yield begin and end of each fault, without end."""
        source = random.Random(f"{seed} {kind} {node}")  # noqa: S311 - it guards nothing
        now = 0.0
        while self.mean_s:
            now += source.expovariate(1 / self.mean_s)
            yield now, now + self.length_s
            now += self.length_s
