"""What the workers of a library's training loop tell each other beside the mini-batches: metrics, decisions, paths.

Owns: these collectives, and what becomes of one that fails. Does not own: the ring (`edl.torch.tensor_ring`).

A worker may die while others validate. Then a collective fails, and each goes on with what it has: the mini-batch that
comes next is void, and by its end all that are left have one state again, callbacks' included. One whose update is made
already counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import msgspec
import torch

from edl.errors import RingBroken, UsageError
from edl.torch.state import synchronize_rest
from edl.torch.tensor_ring import TensorRing
from edl.torch.traveller import as_plain, from_plain

T = TypeVar("T")

MEAN, SUM = frozenset({"mean", "avg"}), frozenset({"sum"})


class RingHolder(Protocol):
    """What has the ring."""

    @property
    def ring(self) -> TensorRing:
        """The present one."""


class BesideSeat(Protocol):
    """What is needed of the trainer."""

    def rank(self) -> int:
        """In the present ring."""

    def size(self) -> int:
        """Of it."""

    @property
    def voided(self) -> bool:
        """The coming mini-batch is void already."""

    def void_beside(self, error: BaseException) -> None:
        """A collective beside the mini-batches has failed."""


class RingWords:
    """Of one worker."""

    def __init__(self, holder: RingHolder, seat: BesideSeat) -> None:
        self._holder, self._seat = holder, seat

    def reduced(self, value: Any, operation: Any) -> Any:
        """The mean or the sum of all workers' tensors."""
        name = getattr(operation, "name", None) or str(operation or "mean")
        if (kind := name.lower().rpartition(".")[2]) not in MEAN | SUM:
            raise UsageError(f"reduce_op={operation!r}: edl has 'mean' and 'sum'")
        if not isinstance(value, torch.Tensor) or self._seat.size() == 1:
            return value
        whole = value if value.is_floating_point() else value.double()
        mean = self._try(lambda: self._holder.ring.mean(whole.detach().clone(), "edl.beside.mean"), whole)
        found = mean * self._seat.size() if kind in SUM else mean
        return found if value.is_floating_point() else _as_kind(found, value, exact=kind in SUM)

    def decision(self, decision: bool, *, of_all: bool) -> bool:
        """Whether all workers, or any, say so."""
        if self._seat.size() == 1:
            return decision
        says = int(not decision) if of_all else int(decision)
        found = self._try(lambda: self._holder.ring.agree(says), says)
        return not found if of_all else bool(found)

    def gathered(self, tensor: torch.Tensor) -> torch.Tensor:
        """All workers' tensors of one shape, by rank."""
        size = self._seat.size()
        if size == 1:
            return tensor.unsqueeze(0)
        rows = torch.zeros((size, *tensor.shape), dtype=torch.float64, device=tensor.device)
        rows[self._seat.rank()] = tensor.detach()
        found = self._try(lambda: self._holder.ring.mean(rows, "edl.beside.gather") * size, rows)
        return _as_kind(found, tensor, exact=True)

    def told(self, value: Any, root: int) -> Any:
        """Plain values of worker `root`."""
        if self._seat.size() == 1:
            return value
        payload = None
        if self._seat.rank() == root:
            try:
                payload = msgspec.msgpack.encode(as_plain(value))
            except (TypeError, msgspec.MsgspecError) as error:
                raise UsageError(f"edl broadcasts plain values and tensors alone: {error}") from None
        raw = self._try(lambda: self._holder.ring.broadcast(payload, root), None)
        return value if raw is None else from_plain(msgspec.msgpack.decode(raw))

    def meet(self) -> None:
        """Until all workers are here."""
        if self._seat.size() > 1:
            self._try(lambda: self._holder.ring.agree(0), 0)

    def share_buffers(self, model: torch.nn.Module) -> None:
        """All have those of the first worker."""
        buffers = list(model.buffers())
        if buffers and self._seat.size() > 1:
            self._try(lambda: synchronize_rest([], buffers, self._holder.ring, 0), None)

    def _try(self, act: Callable[[], T], otherwise: T) -> T:
        if self._seat.voided:
            return otherwise  # the ring is broken, and the others know it too
        try:
            return act()
        except RingBroken as error:
            self._holder.ring.is_failure(error)
            self._seat.void_beside(error)
            return otherwise


def _as_kind(found: torch.Tensor, like: torch.Tensor, *, exact: bool) -> torch.Tensor:
    """Of whole numbers, which travelled as others."""
    if like.is_floating_point():
        return found.to(like.dtype)
    return found.round().to(like.dtype) if exact else found.float()
