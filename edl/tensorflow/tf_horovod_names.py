"""Names that scripts written for Horovod call by `hvd.`, besides edl's own: `import edl.tensorflow as hvd`.

Owns: which of Horovod's names are passed on, and those that mean something else here. Does not own: Horovod.
"""

from __future__ import annotations

from typing import Any, TypeVar

import horovod.tensorflow as hvd

from edl.errors import RingBroken, UsageError
from edl.tensorflow.tf_process import framework, trainer
from edl.tensorflow.tf_reducer import as_it_stands, average
from edl.tensorflow.tf_tensors import behind

AnyOptimizer = TypeVar("AnyOptimizer")

COLLECTIVES = (
    "allgather", "allgather_object", "allreduce", "alltoall", "broadcast", "broadcast_", "broadcast_object",
    "broadcast_global_variables", "broadcast_object_fn", "grouped_allgather", "grouped_allreduce",
    "grouped_reducescatter", "reducescatter",
)  # fmt: skip
OTHERS = (
    "Adasum", "Average", "Compression", "LocalGradientAggregationHelper", "Max", "Min", "Product", "Sum",
    "SyncBatchNormalization", "ccl_built", "check_extension", "check_num_rank_power_of_2", "cross_rank", "cross_size",
    "cuda_built", "ddl_built", "global_process_set", "gloo_built", "gloo_enabled", "gpu_available",
    "handle_average_backwards_compatibility", "is_homogeneous", "is_initialized", "local_rank_op", "local_size",
    "local_size_op", "mpi_built", "mpi_enabled", "mpi_threads_supported", "nccl_built", "process_set_included_op",
    "rank_op", "refs_to_vars", "rocm_built", "size_op", "split_list", "start_timeline", "stop_timeline",
    "vars_to_refs",
)  # fmt: skip
LOCAL = "a local layer is another on each worker, and a newcomer has none of them: train it in a loop of its own"
REFUSED = {
    "join": "all workers make the same number of steps, and a short last one is weighted: leave it away",
    "PartialDistributedGradientTape": LOCAL,
    "PartialDistributedOptimizer": LOCAL,
    "ProcessSet": "a job of edl has one ring, which is made anew when workers come and go",
    "add_process_set": "a job of edl has one ring, which is made anew when workers come and go",
    "remove_process_set": "a job of edl has one ring, which is made anew when workers come and go",
}


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: AnyOptimizer,
    name: str | None = None,  # noqa: ARG001 - Horovod's signature
    *,
    compression: Any = hvd.Compression.none,
    op: Any = hvd.Average,
    backward_passes_per_step: int = 1,
    **hints: Any,  # noqa: ARG001 - of Horovod: devices, groups, orders of divisions; the result is the same
) -> AnyOptimizer:
    """`edl.tensorflow.Optimizer` by Horovod's name and arguments. Returns the same object."""
    _check("DistributedOptimizer", compression, op)
    if backward_passes_per_step != 1:
        raise UsageError(
            f"DistributedOptimizer(backward_passes_per_step={backward_passes_per_step}): give Keras's own optimizer "
            "gradient_accumulation_steps instead"
        )
    framework.wrap(trainer, optimizer, None)
    return optimizer


class DistributedGradientTape:
    """A `tf.GradientTape` whose `gradient()` gives those of the global batch, weighted by samples."""

    def __init__(self, gradtape: Any, *, compression: Any = hvd.Compression.none, op: Any = hvd.Average, **_: Any):
        _check("DistributedGradientTape", compression, op)
        self._tape = gradtape

    def __enter__(self) -> DistributedGradientTape:
        self._tape.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._tape.__exit__(*exception)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)

    @as_it_stands  # type: ignore[untyped-decorator]
    def gradient(self, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        """Return what `tf.GradientTape.gradient` does, averaged over all workers. Raises RingBroken."""
        found = self._tape.gradient(target, sources, *args, **kwargs)
        averaged = average(framework.tape_reducer(trainer), found, sources)
        if averaged is None and trainer.voided:
            raise RingBroken("the gradients were not averaged: a peer is gone")
        return found if averaged is None else averaged


@as_it_stands  # type: ignore[untyped-decorator]
def broadcast_variables(
    variables: Any, root_rank: int, process_set: Any = hvd.global_process_set, inplace: bool = False
) -> Any:
    """Horovod's, for variables of Keras 3 too."""
    return hvd.broadcast_variables([behind(variable) for variable in variables], root_rank, process_set, inplace)


def _check(call: str, compression: Any, op: Any) -> None:
    if compression is not hvd.Compression.none:
        raise UsageError(f"{call}(compression=...): gradients travel as they are: leave it away")
    if op != hvd.Average:
        raise UsageError(f"{call}(op=...): gradients are averaged: leave it away")


MODULES = ("compression", "functions", "gradient_aggregation", "mpi_ops", "sync_batch_norm", "util")
OURS = {one.__name__: one for one in (DistributedOptimizer, DistributedGradientTape, broadcast_variables)}


def lookup(face: str, name: str) -> Any:
    """Return what Horovod's `name` is here. Raises AttributeError, and UsageError where there is a remedy."""
    if name in OURS:
        return OURS[name]
    if name in REFUSED:
        raise UsageError(f"{face}.{name}: {REFUSED[name]}")
    if name not in COLLECTIVES and name not in OTHERS:
        raise AttributeError(f"module {face!r} has no attribute {name!r}")
    return getattr(hvd, name)
