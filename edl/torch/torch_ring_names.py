"""Horovod's names where the ring is torch's own: what scripts call by `hvd.`, with the same arguments and results.

Owns: these names, and which of them there are not. Does not own: the operations (`edl.torch.group_collectives`), nor
the names that are edl's whatever the ring (`edl.torch.torch_horovod_names`).

As Horovod's, operations pair up by `name`, or by their order where they have none, and workers that disagree on one all
get an error. What differs: objects travel as plain values and tensors, and never as code (I18).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from edl.errors import CollectiveFailed, CollectiveRefused, UsageError
from edl.torch import group_collectives as act
from edl.torch import torch_state
from edl.torch.group_collectives import CollectiveCall, Handle, Op, Together
from edl.torch.process_groups import ProcessGroups
from edl.torch.torch_process import framework
from edl.torch.torch_ring import GroupRing
from edl.trainer.registered_state import value_of_root

HOROVOD = "train with --ring horovod (EDL_RING)"
NO_ADASUM = f"torch's process groups have no such sum: leave it away, or {HOROVOD}"
REFUSED = {
    "SyncBatchNorm": f"torch.nn.SyncBatchNorm wants torch's default group, which there is not: {HOROVOD}",
    "start_timeline": f"there is none of torch's process groups: take torch.profiler, or {HOROVOD}",
    "stop_timeline": f"there is none of torch's process groups: take torch.profiler, or {HOROVOD}",
    "check_extension": f"no extension of Horovod's is used: leave it away, or {HOROVOD}",
}
Average, Sum, Adasum, Min, Max, Product = Op.Average, Op.Sum, Op.Adasum, Op.Min, Op.Max, Op.Product
HorovodInternalError = CollectiveFailed  # what a collective raises that has no result


class _AsItIs:
    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:  # noqa: ARG004 - Horovod's signature
        return tensor


class _Half:
    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return tensor.half() if tensor.is_floating_point() else tensor, tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor.to(ctx)


class Compression:
    """The values of `allreduce(compression=...)`."""

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
    assert isinstance(ring, GroupRing)  # `torch_horovod_names` has looked
    if ring.place is None:
        raise UsageError("a collective before edl.init(): call that first")
    return ring.groups


class _AllWorkers:
    """Horovod's `global_process_set`: the one there is."""

    process_set_id = 0

    @property
    def ranks(self) -> list[int]:
        return list(range(_groups().place.size))

    def size(self) -> int:
        return _groups().place.size

    def rank(self) -> int:
        return _groups().place.rank

    def included(self) -> bool:
        return True


global_process_set = _AllWorkers()


def _op(call: str, average: bool | None, op: Any) -> Op:
    """Read the operation from either of Horovod's two ways of saying it."""
    if average is not None and op is not None:
        raise UsageError(f"{call}(average=..., op=...): say one of the two")
    if op is None:
        return Op.Sum if average is False else Op.Average
    try:
        found = Op(op)
    except ValueError:
        raise UsageError(f"{call}(op={op!r}): there are Average, Sum, Min, Max and Product") from None
    if found is Op.Adasum:
        raise CollectiveRefused(f"{call}(op=Adasum): {NO_ADASUM}")
    return found


def _one_ring(call: str, process_set: Any) -> None:
    if process_set is not None and process_set is not global_process_set:
        raise UsageError(f"{call}(process_set=...): a job of edl has one ring: leave it away")


def _parts(name: str | None, tensors: object) -> list[tuple[torch.Tensor, str | None]]:
    """Give each tensor of a group its name."""
    if not isinstance(tensors, Sequence) or not all(isinstance(one, torch.Tensor) for one in tensors):
        raise UsageError("a grouped operation takes a list of tensors")
    return [(one, None if name is None else f"{name}.{number}") for number, one in enumerate(tensors)]


def _together(handles: list[Handle]) -> Handle:
    return Together(handles, lambda found: found)


# --------------------------------------------------------------------------------------------------- all-reduce


def allreduce_async_(  # noqa: PLR0913, PLR0917 - Horovod's signature
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
) -> Handle:
    """Begins an all-reduce in place; `synchronize()` of what is returned waits for it."""
    _one_ring("allreduce", process_set)
    kind = _op("allreduce", average, op)
    return act.reduce(
        _groups(), tensor, tensor, kind, (prescale_factor, postscale_factor), CollectiveCall("allreduce", name)
    )


def allreduce_async(  # noqa: PLR0913, PLR0917 - Horovod's signature
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
) -> Handle:
    """Begin to reduce `tensor` into a new tensor."""
    into = tensor.detach().clone()
    return allreduce_async_(into, average, name, op, prescale_factor, postscale_factor, process_set)


def allreduce_(  # noqa: PLR0913, PLR0917 - Horovod's signature
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
) -> torch.Tensor:
    """Reduce `tensor` over all workers, in place, and return it."""
    handle = allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set)
    found: torch.Tensor = handle.result()
    return found


def allreduce(  # noqa: PLR0913, PLR0917 - Horovod's signature
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
) -> torch.Tensor:
    """Return the average of all workers' tensors, or what `op` says. Gradients come back through it."""

    def reduced(one: torch.Tensor, name: str | None = None) -> torch.Tensor:
        compressed, how = compression.compress(one)
        handle = allreduce_async(compressed, average, name, op, prescale_factor, postscale_factor, process_set)
        found: torch.Tensor = compression.decompress(handle.result(), how)
        return found

    return _through(tensor, lambda one: reduced(one, name), reduced)


def grouped_allreduce_async_(  # noqa: PLR0913, PLR0917 - Horovod's signature
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
) -> Handle:
    """Begin to reduce several tensors in place."""
    more = (op, prescale_factor, postscale_factor, process_set)
    return _together([allreduce_async_(one, average, its, *more) for one, its in _parts(name, tensors)])


def grouped_allreduce_async(  # noqa: PLR0913, PLR0917 - Horovod's signature
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
) -> Handle:
    """Begin to reduce several tensors into new ones."""
    more = (op, prescale_factor, postscale_factor, process_set)
    return _together([allreduce_async(one, average, its, *more) for one, its in _parts(name, tensors)])


def grouped_allreduce_(  # noqa: PLR0913, PLR0917 - Horovod's signature
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
) -> list[torch.Tensor]:
    """Reduce several tensors in place and return them."""
    handle = grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor, process_set)
    found: list[torch.Tensor] = handle.result()
    return found


def grouped_allreduce(  # noqa: PLR0913, PLR0917 - Horovod's signature
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
) -> list[torch.Tensor]:
    """Reduce several tensors. Gradients come back through the operation."""
    more = (compression, op, prescale_factor, postscale_factor, process_set)
    return [allreduce(one, average, its, *more) for one, its in _parts(name, tensors)]


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None = None, op: Any = None, process_set: Any = global_process_set
) -> Callable[[], torch.Tensor]:
    """Begin to reduce a sparse tensor; the returned function waits, and returns the sparse result."""
    _one_ring("sparse_allreduce_async", process_set)
    kind = _op("sparse_allreduce_async", None, op)
    if kind not in {Op.Average, Op.Sum}:
        raise UsageError(f"sparse_allreduce_async({name=}, op={kind.name}): there are Average and Sum")
    if not tensor.is_sparse:
        raise UsageError(f"sparse_allreduce_async({name=}): the tensor is not sparse: take allreduce_async")
    return act.reduce_sparse(_groups(), tensor.detach().clone().coalesce(), kind, name).result


# ------------------------------------------------------------------------------------- gather, scatter, broadcast


def _only_rows(gathered: list[Any]) -> torch.Tensor:
    ((rows, _),) = gathered
    return rows  # type: ignore[no-any-return]


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: Any = global_process_set) -> Handle:
    """Begins an all-gather. Workers may have different numbers of rows."""
    _one_ring("allgather", process_set)
    return Together([act.gather(_groups(), tensor, name)], _only_rows)


def allgather(tensor: torch.Tensor, name: str | None = None, process_set: Any = global_process_set) -> torch.Tensor:
    """Return all workers' rows, by rank. Gradients come back through the operation."""
    _one_ring("allgather", process_set)
    before = 0  # rows of lower ranks

    def forth(one: torch.Tensor) -> torch.Tensor:
        nonlocal before
        groups = _groups()
        found, counts = act.gather(groups, one, name).result()
        before = sum(counts[: groups.place.rank])
        return found  # type: ignore[no-any-return]

    def back(gradient: torch.Tensor) -> torch.Tensor:
        mean = allreduce_(gradient.clone())
        return mean.narrow(0, before, len(tensor)) if tensor.dim() else mean[before]

    return _through(tensor, forth, back)


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: Any = global_process_set
) -> Handle:
    """Begin to gather several tensors."""
    return _together([allgather_async(one, its, process_set) for one, its in _parts(name, tensors)])


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: Any = global_process_set
) -> list[torch.Tensor]:
    """Gather several tensors. Gradients come back through the operation."""
    return [allgather(one, its, process_set) for one, its in _parts(name, tensors)]


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: Any = None,
    process_set: Any = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Begins a reduction of which each worker keeps its share of the rows."""
    _one_ring("reducescatter", process_set)
    groups, kind = _groups(), _op("reducescatter", None, op)
    if kind not in {Op.Average, Op.Sum} or tensor.dim() == 0:
        raise UsageError("reducescatter: Average or Sum, of a tensor with rows")
    into = torch.empty_like(tensor)
    whole = act.reduce(
        groups, tensor, into, kind, (prescale_factor, postscale_factor), CollectiveCall("reducescatter", name)
    )
    own = act.share_of(len(tensor), groups.place.rank, groups.place.size)
    return Together([whole], lambda found: found[0][own].clone())


def reducescatter(  # noqa: PLR0913, PLR0917 - Horovod's signature
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = None,
    process_set: Any = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Average all workers' tensors, or reduce them by `op`, and return this worker's rows of the result. Gradients come
    back through the operation.
    """

    def reduced(one: torch.Tensor) -> torch.Tensor:
        compressed, how = compression.compress(one)
        handle = reducescatter_async(compressed, name, op, process_set, prescale_factor, postscale_factor)
        found: torch.Tensor = compression.decompress(handle.result(), how)
        return found

    def back(gradient: torch.Tensor) -> torch.Tensor:
        factor = _groups().place.size if _op("reducescatter", None, op) is Op.Sum else 1
        return allgather(gradient * (factor * prescale_factor * postscale_factor))

    return _through(tensor, reduced, back)


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: Any = None,
    process_set: Any = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Begin to reduce several tensors, of which each worker gets its rows."""
    more = (op, process_set, prescale_factor, postscale_factor)
    return _together([reducescatter_async(one, its, *more) for one, its in _parts(name, tensors)])


def grouped_reducescatter(  # noqa: PLR0913, PLR0917 - Horovod's signature
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = None,
    process_set: Any = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Reduce several tensors and return this worker's rows of each. Gradients come back through the operation."""
    more = (compression, op, process_set, prescale_factor, postscale_factor)
    return [reducescatter(one, its, *more) for one, its in _parts(name, tensors)]


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = global_process_set
) -> Handle:
    """Begins a broadcast in place."""
    _one_ring("broadcast", process_set)
    return act.broadcast(_groups(), tensor, root_rank, name)


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = global_process_set
) -> Handle:
    """Begin to broadcast into a new tensor."""
    return broadcast_async_(tensor.detach().clone(), root_rank, name, process_set)


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = global_process_set
) -> torch.Tensor:
    """Broadcast in place."""
    found: torch.Tensor = broadcast_async_(tensor, root_rank, name, process_set).result()
    return found


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = global_process_set
) -> torch.Tensor:
    """Return the tensor of `root_rank`. Gradients come back through the operation."""

    def back(gradient: torch.Tensor) -> torch.Tensor:
        mean = allreduce_(gradient.clone())
        return mean if _groups().place.rank == root_rank else torch.zeros_like(mean)

    return _through(tensor, lambda one: broadcast_async(one, root_rank, name, process_set).result(), back)


def alltoall_async(
    tensor: torch.Tensor, splits: Any = None, name: str | None = None, process_set: Any = global_process_set
) -> Handle:
    """Begins to send each worker its rows."""
    _one_ring("alltoall", process_set)
    if isinstance(splits, torch.Tensor):
        if splits.is_floating_point() or splits.dim() != 1:
            raise UsageError("alltoall: splits are a list of whole numbers, one for each worker")
        splits = splits.tolist()
    return act.all_to_all(_groups(), tensor, splits, name)


def alltoall(
    tensor: torch.Tensor, splits: Any = None, name: str | None = None, process_set: Any = global_process_set
) -> Any:
    """The rows that came; with `splits`, also how many from each. Gradients come back through it."""
    received: list[torch.Tensor] = []

    def forth(one: torch.Tensor) -> torch.Tensor:
        found, counts = alltoall_async(one, splits, name, process_set).result()
        received.append(counts)
        return found  # type: ignore[no-any-return]

    found = _through(tensor, forth, lambda gradient: alltoall_async(gradient, received[0]).result()[0])
    return found if splits is None else (found, received[0])


def barrier(process_set: Any = global_process_set) -> None:
    """Wait until all workers are here."""
    _one_ring("barrier", process_set)
    act.agreed(_groups(), CollectiveCall("barrier"), "")


# --------------------------------------------------------------------------------------------------- handles


def poll(handle: Handle) -> bool:
    """Tell whether `synchronize(handle)` would return at once."""
    return handle.is_done()


def synchronize(handle: Handle) -> Any:
    """Wait for an operation and return its result."""
    return handle.result()


# ------------------------------------------------------------------------------------------- objects and models


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: Any = global_process_set
) -> Any:
    """Return `obj` of `root_rank`: numbers, text, arrays, tensors, and lists, tuples, sets and dicts of them."""
    _one_ring("broadcast_object", process_set)
    groups = _groups()
    act.check_root(groups, root_rank)
    said = f"root_rank {root_rank}"

    def send() -> Any:
        return value_of_root(framework, obj, root_rank, "broadcast_object(...)")

    return act.agreed(groups, CollectiveCall("broadcast_object", name), said, send)


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """Return each worker's `obj`, by rank. The same values may travel as by `broadcast_object`."""
    groups = _groups()

    def each() -> list[Any]:
        return [value_of_root(framework, obj, root, "allgather_object(...)") for root in range(groups.place.size)]

    found: list[Any] = act.agreed(groups, CollectiveCall("allgather_object", name), "", each)
    return found


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """The contents of a `state_dict()`, or of parameters, named or not, of `root_rank`, in place."""
    pairs: Iterable[Any] = sorted(params.items()) if isinstance(params, dict) else params
    named = [pair if isinstance(pair, tuple) else (str(number), pair) for number, pair in enumerate(pairs)]
    tensors = [tensor for _, tensor in named if isinstance(tensor, torch.Tensor)]
    groups = _groups()
    act.check_root(groups, root_rank)

    def send() -> None:
        with torch.no_grad():
            torch_state.broadcast_tensors(framework.ring, tensors, root_rank, receive=groups.place.rank != root_rank)

    forms = ", ".join(f"{name} {act.form(one)}" for name, one in named if isinstance(one, torch.Tensor))
    said = f"root_rank {root_rank}, {len(tensors)} tensors: {forms}"
    act.agreed(groups, CollectiveCall("broadcast_parameters"), said, send)


def agreed_state(optimizer: torch.optim.Optimizer, root_rank: int, act_on_it: Callable[[], None]) -> None:
    """Do the work of `broadcast_optimizer_state` once all workers are at it (`edl.torch.torch_horovod_names`)."""
    groups = _groups()
    act.check_root(groups, root_rank)
    said = f"root_rank {root_rank}, {type(optimizer).__name__}"
    act.agreed(groups, CollectiveCall("broadcast_optimizer_state"), said, act_on_it)


# ----------------------------------------------------------------------------------------------- what there is


def is_initialized() -> bool:
    """Tell whether this process sits in a ring."""
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
    """Horovod's other backends are not built in."""
    return False


gloo_built = gloo_enabled = _yes
ccl_built = cuda_built = ddl_built = mpi_built = mpi_enabled = mpi_threads_supported = nccl_built = rocm_built = _no
