"""Collectives of the workers of a library's training loop beside the mini-batches: metrics, decisions, paths.

Owns: these collectives, and what becomes of one that fails. Does not own: the ring (`edl.torch.tensor_ring`), nor where
a loop is (`edl.torch.loop_steps`).

In the middle of a mini-batch a worker may die. Then a collective fails, and each goes on with what it has: the
mini-batch is void, and by its end all that are left have one state again, callbacks' included. One whose update is made
already counts.

Between two mini-batches workers need not be at the same line when one dies, and a newcomer may come, which begins at
the first one. So a collective there is an evaluation of edl's, in which each says something: a worker that has
missed it is told what came of it, and no mini-batch is void.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import msgspec
import torch

from edl.errors import RingBroken, UsageError
from edl.torch.loop_steps import as_plain, from_plain
from edl.torch.tensor_ring import TensorRing
from edl.torch.torch_state import synchronize_rest
from edl.trainer.shared_evaluation import Work

T = TypeVar("T")
Ask = Callable[[Work], tuple[bytes, ...]]

MEAN, SUM = frozenset({"mean", "avg"}), frozenset({"sum"})


class RingHolder(Protocol):
    @property
    def ring(self) -> TensorRing: ...


class BesideSeat(Protocol):
    """The part of the trainer that `LoopCollectives` uses."""

    def rank(self) -> int: ...

    def size(self) -> int: ...

    @property
    def voided(self) -> bool:
        """Tell whether the coming mini-batch is void already."""

    def void_beside(self, error: BaseException) -> None:
        """Make the coming mini-batch void because of an error beside it."""


class Saying:
    """`edl.trainer.shared_evaluation.Work`: nothing is computed, each worker says what it has."""

    units = 0

    def __init__(self, name: str, says: Callable[[], Any]) -> None:
        """`says`: asked anew in each ring, where this worker may have another rank."""
        self._name, self._says = name, says

    def compute(self, units: Sequence[int], goes_on: Callable[[], bool]) -> Sequence[int]:  # noqa: ARG002 - the port's
        return units

    def found(self) -> bytes:
        return msgspec.msgpack.encode([self._name, as_plain(self._says())])


class LoopCollectives:
    def __init__(self, holder: RingHolder, seat: BesideSeat, between: Callable[[], Ask | None] = lambda: None) -> None:
        """`between`: how to ask all workers, where the loop is between two mini-batches; elsewhere None."""
        self._holder, self._seat, self._between = holder, seat, between
        self._apart = ""  # why nothing may be said now

    @contextlib.contextmanager
    def apart(self, reason: str) -> Iterator[None]:
        """Mark what this worker does and the others do not: means and sums are its own, and all else is refused for
        `reason`.
        """
        self._apart = reason
        try:
            yield
        finally:
            self._apart = ""

    def reduced(self, value: Any, operation: Any) -> Any:
        """Return the mean or the sum of all workers' tensors."""
        name = getattr(operation, "name", None) or str(operation or "mean")
        if (kind := name.lower().rpartition(".")[2]) not in MEAN | SUM:
            raise UsageError(f"reduce_op={operation!r}: edl has 'mean' and 'sum'")
        if not isinstance(value, torch.Tensor) or self._apart:
            return value
        whole = value if value.is_floating_point() else value.double()
        if (ask := self._between()) is not None:
            parts = torch.stack(self._told_by_all(ask, "reduce", lambda: whole)).to(value.device)
            found = parts.sum(0) if kind in SUM else parts.mean(0)
        elif self._seat.size() == 1:
            return value
        else:
            mean = self._try(lambda: self._holder.ring.mean(whole.detach().clone(), "edl.beside.mean"), whole)
            found = mean * self._seat.size() if kind in SUM else mean
        return found if value.is_floating_point() else _as_kind(found, value, exact=kind in SUM)

    def decision(self, decision: bool, *, of_all: bool) -> bool:
        """Tell whether all workers say so, or, unless `of_all`, whether any does."""
        if (ask := self._between()) is not None:
            said = self._told_by_all(ask, "decide", lambda: bool(decision))
            return all(said) if of_all else any(said)
        if self._seat.size() == 1:
            return decision
        says = int(not decision) if of_all else int(decision)
        found = self._try(lambda: self._holder.ring.largest([says]), [says]) == [1]
        return not found if of_all else found

    def gathered(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return all workers' tensors, which have one shape, by rank."""
        if (ask := self._between()) is not None:
            parts = self._told_by_all(ask, "gather", lambda: tensor)
            if len({part.shape for part in parts}) > 1:
                raise UsageError(_other_shapes(tensor))
            return torch.stack(parts).to(tensor.device)
        size = self._seat.size()
        if size == 1:
            return tensor.unsqueeze(0)
        shape = zlib.crc32(repr((tensor.dtype, tensor.shape)).encode())
        if not self._try(lambda: self._same(shape), True):
            raise UsageError(_other_shapes(tensor))
        rows = torch.zeros((size, *tensor.shape), dtype=torch.float64, device=tensor.device)
        rows[self._seat.rank()] = tensor.detach()
        found = self._try(lambda: self._holder.ring.mean(rows, "edl.beside.gather") * size, rows)
        return _as_kind(found, tensor, exact=True)

    def _same(self, number: int) -> bool:
        return self._holder.ring.same(number)()

    def told(self, value: Any, root: int) -> Any:
        """Return the plain values of worker `root`."""
        if (ask := self._between()) is not None:
            return self._told_by_all(ask, "broadcast", lambda: value if self._seat.rank() == root else None)[root]
        if self._seat.size() == 1:
            return value
        payload = None
        if self._seat.rank() == root:
            payload = _packed(value)
        raw = self._try(lambda: self._holder.ring.broadcast(payload, root), None)
        return value if raw is None else from_plain(msgspec.msgpack.decode(raw))

    def by_rank(self, name: str, says: Callable[[], Any]) -> list[Any]:
        """Return what each worker says in the collective `name`, by rank: plain values and tensors. Where a collective
        fails in the middle of a mini-batch, return this worker's own value alone.
        """
        if (ask := self._between()) is not None:
            return self._told_by_all(ask, name, says)
        if self._seat.size() == 1:
            return [says()]
        mine = _packed([name, says()])
        return self._try(lambda: self._of_one_name(name, mine), [says()])

    def _of_one_name(self, name: str, mine: bytes) -> list[Any]:
        """Return what each member says, by rank. Raises RingBroken where another one has called something else, and
        UsageError if it is this one. Those who are the most are right, else the first: newcomers have the last ranks.
        """
        told = [msgspec.msgpack.decode(one) for one in self._holder.ring.gathered(mine, name)]
        names = [one[0] for one in told]
        right = max(dict.fromkeys(names), key=names.count)
        if others := ", ".join(sorted({*names} - {right})):
            wrong = (
                f"called {others} in a mini-batch in which the others call {right}: all workers must call the same "
                "collectives in the same order, and what a script counts may differ on a newcomer"
            )
            if name != right:
                raise UsageError(f"this worker has {wrong}")
            raise RingBroken(f"another worker has {wrong}")
        return [from_plain(one[1]) for one in told]

    def meet(self) -> None:
        """Wait until all workers are here."""
        if (ask := self._between()) is not None:
            self._told_by_all(ask, "barrier", lambda: None)
        else:
            self.by_rank("barrier", lambda: None)

    def share_buffers(self, model: torch.nn.Module) -> None:
        """Give all workers the buffers of the first one."""
        buffers = list(model.buffers())
        if not buffers:
            return
        if (ask := self._between()) is not None:
            says = self._told_by_all(ask, "buffers", lambda: buffers if self._seat.rank() == 0 else None)
            with torch.no_grad():
                for mine, theirs in zip(buffers, says[0], strict=True):
                    mine.copy_(theirs)
        elif self._seat.size() > 1:
            self._try(lambda: synchronize_rest([], buffers, self._holder.ring, 0), None)

    def _told_by_all(self, ask: Ask, name: str, says: Callable[[], Any]) -> list[Any]:
        """Return what each worker says, by rank. Raises UsageError where workers do not call the same."""
        if self._apart:
            raise UsageError(self._apart)
        _packed(says())
        told = [msgspec.msgpack.decode(one) for one in ask(Saying(name, says))]
        if names := {one[0] if isinstance(one, list) else "an evaluation" for one in told} - {name}:
            raise UsageError(
                f"between two mini-batches this worker has called {name}, and another one {', '.join(sorted(names))}: "
                "all workers must call the same collectives in the same order"
            )
        return [from_plain(one[1]) for one in told]

    def _try(self, act: Callable[[], T], otherwise: T) -> T:
        if self._apart:
            raise UsageError(self._apart)
        if self._seat.voided:
            return otherwise  # the ring is broken, and the others know it too
        try:
            return act()
        except RingBroken as error:
            self._holder.ring.is_failure(error)
            self._seat.void_beside(error)
            return otherwise


def _packed(value: Any) -> bytes:
    try:
        return msgspec.msgpack.encode(as_plain(value))
    except (TypeError, msgspec.MsgspecError) as error:
        raise UsageError(f"edl broadcasts plain values and tensors alone: {error}") from None


def _other_shapes(tensor: torch.Tensor) -> str:
    return (
        f"all_gather() of a tensor of shape {tuple(tensor.shape)}: another worker has one of another shape. Workers "
        "have other numbers of samples: gather sums, or use a metric of torchmetrics"
    )


def _as_kind(found: torch.Tensor, like: torch.Tensor, *, exact: bool) -> torch.Tensor:
    """Give a result the type of `like`: whole numbers travelled as floating-point ones. A result that is not `exact`
    stays so.
    """
    if like.is_floating_point():
        return found.to(like.dtype)
    return found.round().to(like.dtype) if exact else found.float()
