"""Give all members of the ring rank 0's state of what one call of `edl.Optimizer` brings.

Owns: what it brings, and making it equal. Does not own: moving a state (`edl.torch.torch_state`), nor what a broken
ring leads to (`edl.torch.torch_framework`).

DistributedDataParallel does the same when it is constructed. Without it the first step of a script that brings data of
its own would sum up gradients of other shapes, which ends the process in gloo.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from edl.torch.tensor_ring import TensorRing
from edl.torch.torch_state import synchronize
from edl.torch.torch_tensors import form
from edl.trainer.first_state import check_same


class Wrapped(NamedTuple):
    """A holder (`edl.torch.torch_state.Holder`) of what one call has brought."""

    named: Sequence[tuple[str, torch.Tensor]]  # what no call before has brought
    optimizer: torch.optim.Optimizer

    def tensors(self) -> Sequence[tuple[str, torch.Tensor]]:
        """Named, in the same order on all workers."""
        return self.named

    def optimizers(self) -> Sequence[torch.optim.Optimizer]:
        """List the one optimizer."""
        return [self.optimizer]

    def parts(self) -> list[str]:
        """Describe each tensor, and each group of the optimizer's parameters, in words."""
        tensors = [f"{name} ({form(tensor)})" for name, tensor in self.named]
        groups = [f"a group of {len(group['params'])} parameters" for group in self.optimizer.param_groups]
        return [*tensors, *groups]


def make_equal(wrapped: Wrapped, ring: TensorRing) -> None:
    """Make what was wrapped equal on all members of the ring, which call this at the same place of their scripts.
    Raises RingBroken, and on all of them UsageError.
    """
    if ring.place is not None and ring.place.size > 1:
        check_same(ring, wrapped.parts())
        synchronize(wrapped, ring, 0)
