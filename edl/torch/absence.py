"""Gradients that are not there: what a worker contributes for one, and how it sees that no worker had it.

Owns: that. Does not own: which are missing (`edl.torch.torch_reducer`), nor how they travel (`edl.torch.tensor_ring`).

A worker that got no gradient of a parameter cannot know whether another one did, and that one does not know that any
is missing. So all take part in the sum, and the sum itself tells: who has nothing adds negative zeros, which stay
negative zeros only with their like (IEEE 754: -0 + -0 = -0, and -0 + 0 = 0). A usual step pays nothing for that. A
gradient that is there counts as missing only where all of its elements are negative zeros, on all workers that have it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

NOTHING = -0.0


def takes_gradients(parameter: torch.Tensor) -> bool:
    """Return whether `parameter` may get a gradient, now or once it is thawed."""
    if parameter.requires_grad:
        return True
    return (parameter.is_floating_point() or parameter.is_complex()) and not parameter.is_inference()


def blank(gradient: torch.Tensor) -> None:
    """Make a gradient that of a worker that has none, in place."""
    gradient.fill_(complex(NOTHING, NOTHING) if gradient.is_complex() else NOTHING)


def nothing_like(parameter: torch.Tensor) -> torch.Tensor:
    """Make the dense gradient of a worker that has none."""
    gradient = torch.empty_like(parameter, requires_grad=False)
    blank(gradient)
    return gradient


def no_rows(shape: torch.Size, like: torch.Tensor, dimensions: int) -> torch.Tensor:
    """Make the sparse gradient of a worker that has none, in so many sparse `dimensions`."""
    indices = torch.empty((dimensions, 0), dtype=torch.int64, device=like.device)
    values = torch.empty((0, *shape[dimensions:]), dtype=like.dtype, device=like.device)
    return torch.sparse_coo_tensor(indices, values, shape, is_coalesced=True, check_invariants=False)


def sparse_parameters(model: torch.nn.Module) -> list[torch.Tensor]:
    """List the parameters of embeddings whose gradients are rows."""
    kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    return [part.weight for part in model.modules() if isinstance(part, kinds) and part.sparse]


class AbsentGradients:
    """The contribution of this worker for parameters of one optimizer that have no gradient here."""

    def __init__(self) -> None:
        self._sparse: dict[torch.Tensor, int] = {}  # whose gradient was so once: how many of its dimensions are

    def know_sparse(self, parameter: torch.Tensor, dimensions: int = 1) -> None:
        """Note that the gradient of `parameter` is sparse, where there is one."""
        self._sparse[parameter] = dimensions

    def nothing(self, parameter: torch.Tensor) -> torch.Tensor:
        """Make what stands for no gradient, of the layout that the gradient has on a worker that has one."""
        dimensions = self._sparse.get(parameter)
        return nothing_like(parameter) if dimensions is None else no_rows(parameter.shape, parameter, dimensions)


def are_absent(sums: Sequence[torch.Tensor]) -> list[bool]:
    """Say of each sum whether no worker has added anything to it."""
    answers = [_is_absent(one) for one in sums]
    found: list[bool] = torch.stack([one.cpu() for one in answers]).tolist() if answers else []
    return found


def _is_absent(total: torch.Tensor) -> torch.Tensor:
    if total.is_sparse:
        return torch.tensor(total._nnz() == 0)
    numbers = torch.view_as_real(total) if total.is_complex() else total
    return torch.logical_and(numbers == 0, torch.signbit(numbers)).all()
