"""Members of a ring wrap a model: they find that it is the same on all, and it becomes that of rank 0.

Owns: that comparison, and what is said where models differ. Does not own: what makes up a model's state, and moving it
(`edl.torch.state`), nor what a broken ring leads to (`edl.torch.framework`).

DistributedDataParallel does the same when it is constructed. Without it the first step of a script that brings data of
its own would sum up gradients of other shapes, which ends the process in gloo.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

import msgspec
import torch

from edl.collectives.ring import of_all_members
from edl.errors import UsageError
from edl.torch.state import ALIKE, synchronize
from edl.torch.tensor_ring import TensorRing
from edl.torch.tensors import form


class Wrapped(NamedTuple):
    """`edl.torch.state.Holder` of one call of `edl.Optimizer`."""

    named: Sequence[tuple[str, torch.Tensor]]  # what no call before has brought
    optimizer: torch.optim.Optimizer

    def tensors(self) -> Sequence[tuple[str, torch.Tensor]]:
        """Named, in the same order on all workers."""
        return self.named

    def optimizers(self) -> Sequence[torch.optim.Optimizer]:
        """The one."""
        return [self.optimizer]


def make_equal(wrapped: Wrapped, ring: TensorRing) -> None:
    """All members of the ring call it at the same place of their scripts. Raises RingBroken, and on all of them
    UsageError.
    """
    place = ring.place
    if place is None or place.size == 1:
        return
    mine = msgspec.msgpack.encode(described(wrapped))
    if not ring.same(int.from_bytes(hashlib.blake2b(mine, digest_size=8).digest(), "little"))():
        by_rank = [msgspec.msgpack.decode(one, type=list[str]) for one in of_all_members(ring, mine)]
        raise UsageError(f"edl.Optimizer: {difference(by_rank)}. {ALIKE}")
    synchronize(wrapped, ring, 0)


def described(wrapped: Wrapped) -> list[str]:
    """Each tensor, and each group of the optimizer's parameters."""
    tensors = [f"{name} ({form(tensor)})" for name, tensor in wrapped.named]
    groups = [f"a group of {len(group['params'])} parameters" for group in wrapped.optimizer.param_groups]
    return [*tensors, *groups]


def difference(by_rank: Sequence[Sequence[str]]) -> str:
    """Where the first rank that has another model than rank 0 differs from it."""
    rank = next(rank for rank, of_rank in enumerate(by_rank) if of_rank != by_rank[0])
    pairs = zip_longest(by_rank[0], by_rank[rank], fillvalue="nothing more")
    first, here = next((first, here) for first, here in pairs if first != here)
    return f"the model of rank {rank} is not that of rank 0: {here} on rank {rank}, {first} on rank 0"
