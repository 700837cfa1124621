"""Horovod's names where the ring is torch's own: what scripts call by `hvd.`, with the same arguments and results.

Owns: these names, and which of them there are not. Does not own: the operations (`edl.torch.group_collectives`), nor
the names that are edl's whatever the ring (`edl.torch.horovod_names`).

What differs from Horovod's: operations pair up by their order, not by `name`, so all workers call them in the same
order. Objects travel as plain values and tensors, and never as code (I18).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import torch

from edl.errors import RingBroken, UsageError
from edl.torch import group_collectives as act
from edl.torch import state
from edl.torch.group_collectives import Handle, Op
from edl.torch.group_ring import GroupRing
from edl.torch.groups import ProcessGroups
from edl.torch.process import framework
from edl.trainer.packing import Packing, Unpacking
from edl.trainer.tree import Node

HOROVOD = "train with --ring horovod (EDL_RING)"
REFUSED = {
    "Adasum": f"torch's process groups have no such sum: leave it away, or {HOROVOD}",
    "SyncBatchNorm": f"torch.nn.SyncBatchNorm wants torch's default group, which there is not: {HOROVOD}",
}
Average, Sum, Min, Max, Product = Op.Average, Op.Sum, Op.Min, Op.Max, Op.Product
HorovodInternalError = RingBroken  # what a collective raises that has failed


class _AsItIs:
    """Travels as it is."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:  # noqa: ARG004 - Horovod's signature
        return tensor


class _Half:
    """Travels as float16."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return tensor.half() if tensor.is_floating_point() else tensor, tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor.to(ctx)


class Compression:
    """What `allreduce(compression=...)` takes."""

    none = _AsItIs
    fp16 = _Half


class _Differentiable(torch.autograd.Function):
    """An operation that gradients come back through."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, forth: Any, back: Any) -> Any:
        ctx.back = back
        return forth(tensor.detach())

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return ctx.back(gradient.contiguous()), None, None


def _through(
    tensor: torch.Tensor, forth: Callable[[Any], Any], back: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    found: torch.Tensor = _Differentiable.apply(tensor, forth, back)  # type: ignore[no-untyped-call]
    return found


def _groups() -> ProcessGroups:
    ring = framework.ring
    assert isinstance(ring, GroupRing)  # `horovod_names` has looked
    if ring.place is None:
        raise UsageError("a collective before edl.init(): call that first")
    return ring.groups


def _op(call: str, average: bool | None, op: Any) -> Op:
    """Horovod's two ways of saying it."""
    if average is not None and op is not None:
        raise UsageError(f"{call}(average=..., op=...): say one of the two")
    if op is None:
        return Op.Sum if average is False else Op.Average
    try:
        return Op(op)
    except ValueError:
        raise UsageError(f"{call}(op={op!r}): there are Average, Sum, Min, Max and Product") from None


def _one_ring(call: str, process_set: Any) -> None:
    if process_set is not None:
        raise UsageError(f"{call}(process_set=...): a job of edl has one ring: leave it away")


# --------------------------------------------------------------------------------------------------- all-reduce


def allreduce_async_(  # noqa: PLR0913, PLR0917 - Horovod's signature
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,  # noqa: ARG001 - the order says which
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = None,
) -> Handle:
    """Begins an all-reduce in place; `synchronize()` of what is returned waits for it."""
    _one_ring("allreduce", process_set)
    return act.reduce(_groups(), tensor, tensor, _op("allreduce", average, op), prescale_factor, postscale_factor)


def allreduce_async(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Handle:
    """The same, into a new tensor."""
    return allreduce_async_(tensor.detach().clone(), *args, **kwargs)


def allreduce_(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """All-reduce in place."""
    found: torch.Tensor = allreduce_async_(tensor, *args, **kwargs).result()
    return found


def allreduce(  # noqa: PLR0913, PLR0917 - Horovod's signature
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = None,
) -> torch.Tensor:
    """The average, or what `op` says, of all workers' tensors. Gradients come back through it."""
    arguments = (average, name, op, prescale_factor, postscale_factor, process_set)

    def reduced(one: torch.Tensor) -> torch.Tensor:
        compressed, how = compression.compress(one)
        found: torch.Tensor = compression.decompress(allreduce_async(compressed, *arguments).result(), how)
        return found

    return _through(tensor, reduced, reduced)


def grouped_allreduce_async_(tensors: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> Handle:
    """Several at once, in place."""
    return _together([allreduce_async_(tensor, *args, **kwargs) for tensor in tensors])


def grouped_allreduce_async(tensors: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> Handle:
    """The same, into new tensors."""
    return _together([allreduce_async(tensor, *args, **kwargs) for tensor in tensors])


def grouped_allreduce_(tensors: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> list[torch.Tensor]:
    """All-reduce of several, in place."""
    found: list[torch.Tensor] = grouped_allreduce_async_(tensors, *args, **kwargs).result()
    return found


def grouped_allreduce(tensors: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> list[torch.Tensor]:
    """All-reduce of several. Gradients come back through it."""
    return [allreduce(tensor, *args, **kwargs) for tensor in tensors]


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None = None, op: Any = None, process_set: Any = None
) -> Callable[[], torch.Tensor]:
    """Of a sparse tensor; what is returned waits, and gives the sparse result."""
    _one_ring("sparse_allreduce_async", process_set)
    groups, kind = _groups(), _op("sparse_allreduce_async", None, op)
    if kind not in {Op.Average, Op.Sum}:
        raise UsageError(f"sparse_allreduce_async({name=}, op={kind.name}): there are Average and Sum")
    rows = tensor.detach().clone().coalesce()
    works = [] if groups.place.size == 1 else [groups.rest.allreduce([rows])]
    return Handle(groups, works, lambda: rows / groups.place.size if kind is Op.Average else rows).result


# ------------------------------------------------------------------------------------- gather, scatter, broadcast


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: Any = None) -> Handle:  # noqa: ARG001
    """Begins an all-gather; how many rows each has is waited for at once."""
    _one_ring("allgather", process_set)
    return act.gather(_groups(), tensor)


def allgather(tensor: torch.Tensor, name: str | None = None, process_set: Any = None) -> torch.Tensor:
    """All workers' rows, by rank. Gradients come back through it."""
    groups = _groups()
    before = (
        sum(act.row_counts(groups, len(tensor))[: groups.place.rank]) if tensor.requires_grad and tensor.dim() else 0
    )

    def back(gradient: torch.Tensor) -> torch.Tensor:
        mean = allreduce_(gradient.clone())
        return mean.narrow(0, before, len(tensor)) if tensor.dim() else mean[groups.place.rank]

    return _through(tensor, lambda one: allgather_async(one, name, process_set).result(), back)


def grouped_allgather_async(tensors: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> Handle:
    """Several at once."""
    return _together([allgather_async(tensor, *args, **kwargs) for tensor in tensors])


def grouped_allgather(tensors: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> list[torch.Tensor]:
    """All-gather of several. Gradients come back through it."""
    return [allgather(tensor, *args, **kwargs) for tensor in tensors]


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,  # noqa: ARG001
    op: Any = None,
    process_set: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Begins a reduction of which each worker keeps its share of the rows."""
    _one_ring("reducescatter", process_set)
    groups, kind = _groups(), _op("reducescatter", None, op)
    if kind not in {Op.Average, Op.Sum} or tensor.dim() == 0:
        raise UsageError("reducescatter: Average or Sum, of a tensor with rows")
    into = torch.empty_like(tensor)
    whole = act.reduce(groups, tensor, into, kind, prescale_factor, postscale_factor)
    own = act.share_of(len(tensor), groups.place.rank, groups.place.size)

    def outcome() -> torch.Tensor:
        found: torch.Tensor = whole.result()
        return found[own].clone()

    return _Later([whole], outcome)


def reducescatter(  # noqa: PLR0913, PLR0917 - Horovod's signature
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = None,
    process_set: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Of the average of all workers' tensors, the rows of this one. Gradients come back through it."""

    def reduced(one: torch.Tensor) -> torch.Tensor:
        compressed, how = compression.compress(one)
        handle = reducescatter_async(compressed, name, op, process_set, prescale_factor, postscale_factor)
        found: torch.Tensor = compression.decompress(handle.result(), how)
        return found

    def back(gradient: torch.Tensor) -> torch.Tensor:
        factor = _groups().place.size if _op("reducescatter", None, op) is Op.Sum else 1
        return allgather(gradient * (factor * prescale_factor * postscale_factor))

    return _through(tensor, reduced, back)


def grouped_reducescatter_async(tensors: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> Handle:
    """Several at once."""
    return _together([reducescatter_async(tensor, *args, **kwargs) for tensor in tensors])


def grouped_reducescatter(tensors: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> list[torch.Tensor]:
    """Several. Gradients come back through it."""
    return [reducescatter(tensor, *args, **kwargs) for tensor in tensors]


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,  # noqa: ARG001
    process_set: Any = None,
) -> Handle:
    """Begins a broadcast in place."""
    _one_ring("broadcast", process_set)
    return act.broadcast(_groups(), tensor, root_rank)


def broadcast_async(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Handle:
    """The same, into a new tensor."""
    return broadcast_async_(tensor.detach().clone(), *args, **kwargs)


def broadcast_(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Broadcast in place."""
    found: torch.Tensor = broadcast_async_(tensor, *args, **kwargs).result()
    return found


def broadcast(tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = None) -> torch.Tensor:
    """What the tensor of `root_rank` holds. Gradients come back through it."""

    def back(gradient: torch.Tensor) -> torch.Tensor:
        mean = allreduce_(gradient.clone())
        return mean if _groups().place.rank == root_rank else torch.zeros_like(mean)

    return _through(tensor, lambda one: broadcast_async(one, root_rank, name, process_set).result(), back)


def alltoall_async(
    tensor: torch.Tensor,
    splits: Any = None,
    name: str | None = None,  # noqa: ARG001
    process_set: Any = None,
) -> Handle:
    """Begins to send each worker its rows; how many come is waited for at once."""
    _one_ring("alltoall", process_set)
    return act.all_to_all(_groups(), tensor, splits.tolist() if isinstance(splits, torch.Tensor) else splits)


def alltoall(tensor: torch.Tensor, splits: Any = None, name: str | None = None, process_set: Any = None) -> Any:
    """The rows that came; with `splits`, also how many from each. Gradients come back through it."""
    received: list[torch.Tensor] = []

    def forth(one: torch.Tensor) -> torch.Tensor:
        found, counts = alltoall_async(one, splits, name, process_set).result()
        received.append(counts)
        return found  # type: ignore[no-any-return]

    found = _through(tensor, forth, lambda gradient: alltoall_async(gradient, received[0]).result()[0])
    return found if splits is None else (found, received[0])


def barrier(process_set: Any = None) -> None:
    """Until all workers are here."""
    _one_ring("barrier", process_set)
    groups = _groups()
    if groups.place.size > 1:
        groups.wait(groups.begun(groups.rest.barrier()))


# --------------------------------------------------------------------------------------------------- handles


def poll(handle: Handle) -> bool:
    """Whether `synchronize(handle)` would not wait."""
    return handle.is_done()


def synchronize(handle: Handle) -> Any:
    """What came of an operation, once it is through."""
    return handle.result()


def _together(handles: list[Handle]) -> Handle:
    return _Later(handles, lambda: [handle.result() for handle in handles])


class _Later(Handle):
    """What comes of other operations."""

    def __init__(self, handles: Sequence[Handle], outcome: Callable[[], Any]) -> None:
        super().__init__(_groups(), (), outcome)
        self._handles = handles

    def is_done(self) -> bool:
        return all(handle.is_done() for handle in self._handles)


# ------------------------------------------------------------------------------------------- objects and models


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None, process_set: Any = None) -> Any:  # noqa: ARG001
    """What `obj` is on `root_rank`: numbers, text, arrays, tensors, and lists, tuples, sets and dicts of them."""
    _one_ring("broadcast_object", process_set)
    return _object(obj, root_rank, "broadcast_object")


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:  # noqa: ARG001 - Horovod's signature
    """Each worker's, by rank. The same may travel."""
    return [_object(obj, root, "allgather_object") for root in range(_groups().place.size)]


def _object(obj: Any, root: int, call: str) -> Any:
    place, ring, sorts = _groups().place, framework.ring, framework.sorts
    if place.rank == root:
        packing = Packing(sorts)
        head = msgspec.msgpack.encode(packing.of(obj, f"{call}(...)"))
        ring.broadcast(head, root)
        framework.broadcast([content.contents for content in packing.contents], root)
        return obj
    unpacking = Unpacking(sorts)
    node: Any = msgspec.msgpack.decode(ring.broadcast(None, root), type=Node)
    coming = unpacking.of(node, None, f"{call}(...)")
    framework.broadcast(unpacking.contents, root)
    return coming()


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """The contents of a `state_dict()`, or of parameters, named or not, of `root_rank`, in place."""
    pairs: Iterable[Any] = sorted(params.items()) if isinstance(params, dict) else params
    tensors = [pair[1] if isinstance(pair, tuple) else pair for pair in pairs]
    place = _groups().place
    if place.size > 1:
        with torch.no_grad():
            state.broadcast_tensors(framework.ring, tensors, root_rank, receive=place.rank != root_rank)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,  # noqa: ARG001 - sparse parameters need no care here
) -> None:
    """All of an optimizer of `root_rank`: hyper-parameters and state."""
    _groups()
    state.synchronize(_Only(optimizer), framework.ring, root_rank)


class _Only:
    """`edl.torch.state.Holder` of one optimizer, without a model."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer

    def tensors(self) -> Iterable[tuple[str, torch.Tensor]]:
        return ()

    def optimizers(self) -> Iterable[torch.optim.Optimizer]:
        return (self._optimizer,)


# ----------------------------------------------------------------------------------------------- what there is


def is_initialized() -> bool:
    """Whether this process sits in a ring."""
    return framework.ring.place is not None


def local_size() -> int:
    """Workers on this host."""
    return _groups().place.local_size


def cross_rank() -> int:
    """Number of this host among those that have this local rank too."""
    return _groups().place.cross_rank


def cross_size() -> int:
    """Hosts that have this local rank."""
    return _groups().place.cross_size


def _yes() -> bool:
    """Collectives run on gloo."""
    return True


def _no() -> bool:
    """Nothing is built for it."""
    return False


gloo_built = gloo_enabled = _yes
ccl_built = cuda_built = ddl_built = mpi_built = mpi_enabled = mpi_threads_supported = nccl_built = rocm_built = _no
