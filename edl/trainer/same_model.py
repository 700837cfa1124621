"""Checking that all members of a ring are about to train the same model.

Owns: that question, and what is said where models differ. Does not own: what makes up a model (the adapters), nor
making equal what is in it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import zip_longest

import msgspec

from edl.collectives.ring_port import Ring, of_all_members
from edl.errors import UsageError

ALIKE = "All workers must build the same model and wrap the same optimizers, in the same order"


def check_same(ring: Ring, parts: Sequence[str]) -> None:
    """Check `parts`, which describe this member's model, against all members', who call it at the same place.

    Raises RingBroken, and on all of them UsageError.
    """
    mine = msgspec.msgpack.encode(parts)
    if ring.same(int.from_bytes(hashlib.blake2b(mine, digest_size=8).digest(), "little"))():
        return
    by_rank = [msgspec.msgpack.decode(one, type=list[str]) for one in of_all_members(ring, mine)]
    raise UsageError(f"edl.Optimizer: {difference(by_rank)}. {ALIKE}")


def difference(by_rank: Sequence[Sequence[str]]) -> str:
    """Say how the first rank with a model other than rank 0's differs."""
    rank = next(rank for rank, of_rank in enumerate(by_rank) if of_rank != by_rank[0])
    pairs = zip_longest(by_rank[0], by_rank[rank], fillvalue="nothing more")
    first, here = next((first, here) for first, here in pairs if first != here)
    return f"the model of rank {rank} is not that of rank 0: {here} on rank {rank}, {first} on rank 0"
