"""Names of the tensors that Horovod reduces in each step; its ring reduces zeros by them once, before its first step.

Horovod pairs up by name what members begin in any order. They have to tell each other of a name that is new in their
ring, which takes as long as several reductions. So the members of a ring that is prepared beside one that works reduce
zeros by these names. Where that is too much, they reduce one number of each kind: numbers that a member cannot reduce
are so found out before any member comes to train there.

Owns: which names these are, and that all members take the same. Does not own: reducing (behind `Sums`), nor when
(`edl.collectives.horovod_ring`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

MOST_BYTES = 2**20  # of zeros, beside training. Where there is more to reduce, a step takes far longer than its names


class Named(NamedTuple):
    """A tensor that is reduced under a name."""

    name: str
    shape: tuple[int, ...]
    kind: str  # of its numbers, as its framework calls them
    item_bytes: int


class Sums(Protocol):
    """Reductions by one framework in any of Horovod's libraries, also in one whose turn it is not.

    `library` is what `edl.collectives.horovod_libraries.Library.taker` says. All of it raises what the framework
    raises.
    """

    def largest_in(self, library: Any, values: list[int], name: str) -> list[int]:
        """Return the largest of all members' values in each place: signed, of 64 bits."""

    def reduce_zeros(self, library: Any, tensors: Sequence[Named]) -> None:
        """Reduce zeros under each name, as gradients of these names are reduced."""


def one_of_each_kind(named: Sequence[Named]) -> list[Named]:
    """Return a number of each kind that is among `named`, under names that no step reduces."""
    kinds = {(one.kind, one.item_bytes) for one in named}
    return [Named(f"edl.kind.{kind}", (1,), kind, item_bytes) for kind, item_bytes in sorted(kinds)]


def go_through(sums: Sums, library: Any, named: Sequence[Named]) -> None:
    """Reduce zeros by all names once, on all members of the ring in `library`. Raises what `sums` raises.

    Members that know different names skip all of them: else each would wait for the others' names.
    """
    whole = sum(math.prod(one.shape) * one.item_bytes for one in named)
    chosen = sorted(named) if whole <= MOST_BYTES else one_of_each_kind(named)
    digest = int.from_bytes(hashlib.blake2b(repr(chosen).encode(), digest_size=7).digest(), "little")
    most, least = sums.largest_in(library, [digest, ~digest], "edl.same")
    if most == ~least:
        sums.reduce_zeros(library, chosen)
