"""What goes wrong in a simulated cluster: nodes that fail and come back, and nodes that are slow for a while.

Each node has times of its own, drawn from the seed and its name: the same seed is the same story, whatever a policy
does.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec


class Faults(msgspec.Struct, frozen=True):
    """Each node meets one every `mean_s` on average, of a length of `length_s`. `mean_s` 0: none."""

    mean_s: float = 0.0
    length_s: float = 0.0
    much: float = 0.0  # seconds of training that a failure costs a job; how many times longer a straggler's steps take

    def times(self, seed: int, kind: str, node: str) -> Iterator[tuple[float, float]]:
        """Begin and end of each, without end."""
        source = random.Random(f"{seed} {kind} {node}")  # noqa: S311 - it guards nothing
        now = 0.0
        while self.mean_s:
            now += source.expovariate(1 / self.mean_s)
            yield now, now + self.length_s
            now += self.length_s
