"""Names that scripts written for Horovod call by `hvd.`, besides edl's own: `import edl.torch as hvd`.

Owns: which of Horovod's names there are, and those that mean something else here. Does not own: what stands for them
where the ring is Horovod's, its own, or torch's (`edl.torch.torch_ring_names`).
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import torch

from edl.collectives.horovod_ring import HorovodRing
from edl.errors import RingBroken, UsageError
from edl.torch import torch_state
from edl.torch.torch_process import framework, trainer
from edl.torch.torch_reducer import Manner
from edl.trainer.registered_state import value_of_root

AnyOptimizer = TypeVar("AnyOptimizer", bound=torch.optim.Optimizer)

COLLECTIVES = (
    "allgather", "allgather_async", "allgather_object", "allreduce", "allreduce_", "allreduce_async",
    "allreduce_async_", "alltoall", "alltoall_async", "barrier", "broadcast", "broadcast_", "broadcast_async",
    "broadcast_async_", "broadcast_object", "broadcast_parameters", "grouped_allgather",
    "grouped_allgather_async", "grouped_allreduce", "grouped_allreduce_", "grouped_allreduce_async",
    "grouped_allreduce_async_", "grouped_reducescatter", "grouped_reducescatter_async", "poll", "reducescatter",
    "reducescatter_async", "sparse_allreduce_async", "synchronize",
)  # fmt: skip
OTHERS = (
    "Adasum", "Average", "Compression", "HorovodInternalError", "Max", "Min", "Product", "Sum", "SyncBatchNorm",
    "ccl_built", "cross_rank", "cross_size", "cuda_built", "ddl_built", "gloo_built", "gloo_enabled", "is_initialized",
    "check_extension", "global_process_set", "local_size", "mpi_built", "mpi_enabled", "mpi_threads_supported",
    "nccl_built", "rocm_built", "start_timeline", "stop_timeline",
)  # fmt: skip
REFUSED = {
    "join": "all workers make the same number of steps, and a short last one is weighted: leave it away",
    "ProcessSet": "a job of edl has one ring, which is made anew when workers come and go",
    "add_process_set": "a job of edl has one ring, which is made anew when workers come and go",
    "remove_process_set": "a job of edl has one ring, which is made anew when workers come and go",
}


def DistributedOptimizer(  # noqa: N802, PLR0913, PLR0917 - Horovod's signature
    optimizer: AnyOptimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: Any = None,
    backward_passes_per_step: int = 1,
    op: Any = None,
    gradient_predivide_factor: float = 1.0,  # noqa: ARG001 - the same result, by another order of divisions
    num_groups: int = 0,  # noqa: ARG001 - Horovod fuses by itself
    groups: Any = None,  # noqa: ARG001 - the same
    sparse_as_dense: bool = False,  # noqa: ARG001 - sparse gradients are gathered: the same result
    process_set: Any = None,
) -> AnyOptimizer:
    """`edl.torch.Optimizer` by Horovod's name and arguments. Returns the same object.

    After `backward_passes_per_step` times `backward()`, or at `step()` after fewer, the sum of the gradients is
    averaged over the workers, weighted by the samples of the mini-batch; what no worker has used gets zeros. With more
    than one, the average is there after `synchronize()` or `step()`, as Horovod's: workers may differ in how often they
    call `backward()`.
    """
    names = _names()
    whole = (None, getattr(names, "global_process_set", None))
    remedies = {
        "compression": compression not in {None, names.Compression.none}
        and "gradients travel as they are: leave it away",
        "op": op not in {None, names.Average} and "gradients are averaged: leave it away",
        "process_set": process_set not in whole and REFUSED["ProcessSet"],
    }
    for name, remedy in remedies.items():
        if remedy:
            raise UsageError(f"DistributedOptimizer({name}=...): {remedy}")
    if backward_passes_per_step < 1:
        raise UsageError(f"DistributedOptimizer(backward_passes_per_step={backward_passes_per_step}): at least 1")
    if named_parameters is not None:
        named_parameters = list(named_parameters)
        _check_named(optimizer, named_parameters)
    framework.wrap(trainer, optimizer, None, named_parameters, Manner(backward_passes_per_step, zeros=True))
    return optimizer


def _check_named(optimizer: object, named: list[Any]) -> None:
    """Raise UsageError where some parameters have a name and others have none, as Horovod does."""
    known = {id(pair[1]) for pair in named if isinstance(pair, tuple) and len(pair) == 2}
    parameters = list(torch_state.parameters_of(optimizer)) if isinstance(optimizer, torch.optim.Optimizer) else []
    if missing := sum(id(one) not in known for one in parameters):
        raise UsageError(
            f"DistributedOptimizer(named_parameters=...): {missing} of {len(parameters)} parameters are not "
            "among them: pass model.named_parameters() of all its models, or leave it away"
        )


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,  # noqa: ARG001 - Horovod's signature; sparse parameters need no care here
) -> None:
    """Give all workers the optimizer of `root_rank`, hyper-parameters and state, whatever they have: from one that has
    loaded a checkpoint, say, to those that have not.

    Horovod's own makes up a state by a step where there is none, and edl's step averages gradients over all workers.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UsageError(f"broadcast_optimizer_state(): a {type(optimizer).__name__} is no torch.optim.Optimizer")
    blank = [one for one in torch_state.parameters_of(optimizer) if one.requires_grad and one.grad is None]
    for parameter in () if optimizer.state else blank:
        parameter.grad = torch.zeros_like(parameter)  # as Horovod's leaves it where there was no state

    def send() -> None:
        torch_state.synchronize(_Only(optimizer), framework.ring, root_rank)

    if uses_horovod():
        with failing_as_horovods():
            send()
    else:
        _names().agreed_state(optimizer, root_rank, send)


def value_of_first(value: Any, call: str) -> Any:
    """Return rank 0's `value`, plain values and tensors, on all workers."""
    if uses_horovod():
        with failing_as_horovods():
            return value_of_root(framework, value, 0, call)
    return _names().broadcast_object(value)


@contextlib.contextmanager
def failing_as_horovods() -> Iterator[None]:
    """Turn RingBroken into what Horovod's own collectives raise."""
    try:
        yield
    except RingBroken as error:
        raise _names().HorovodInternalError(str(error)) from error


class _Only:
    """`edl.torch.torch_state.Holder` of one optimizer, without a model."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer

    def tensors(self) -> Iterable[tuple[str, torch.Tensor]]:
        return ()

    def optimizers(self) -> Iterable[torch.optim.Optimizer]:
        return (self._optimizer,)


MODULES = ("compression", "functions", "mpi_ops", "sync_batch_norm")  # of Horovod's, whose names are those of hvd here
OURS = {one.__name__: one for one in (DistributedOptimizer, broadcast_optimizer_state)}


def lookup(face: str, name: str) -> Any:
    """Return what Horovod's `name` is here. Raises AttributeError, and UsageError where there is a remedy."""
    if name in OURS:
        return OURS[name]
    if name in REFUSED:
        raise UsageError(f"{face}.{name}: {REFUSED[name]}")
    if name not in COLLECTIVES and name not in OTHERS:
        raise AttributeError(f"module {face!r} has no attribute {name!r}")
    names = _names()
    if remedy := getattr(names, "REFUSED", {}).get(name):
        raise UsageError(f"{face}.{name} with --ring torch: {remedy}")
    return getattr(names, name)


def uses_horovod() -> bool:
    return isinstance(framework.ring, HorovodRing)


def _names() -> Any:
    return importlib.import_module("horovod.torch" if uses_horovod() else "edl.torch.torch_ring_names")
