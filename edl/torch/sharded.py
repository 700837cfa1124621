"""Tensors that the processes of one worker hold in shards: what this process has of them.

Owns: this process's part of a `DTensor`, how it is described, and what edl asks of FSDP2. Does not own: what is done
with the part: rings, state and fingerprints see nothing else (`edl.torch.torch_reducer`, `edl.torch.torch_state`).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from edl.errors import UsageError

FSDP1 = "FullyShardedDataParallel"


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of a sharded tensor that this process holds; of any other tensor, itself."""
    local: torch.Tensor | None = getattr(tensor, "_local_tensor", None)
    return tensor if local is None else local


def is_sharded(tensor: torch.Tensor) -> bool:
    return getattr(tensor, "_local_tensor", None) is not None


def placement_of(tensor: torch.Tensor) -> str:
    """Say over which mesh a tensor lies, and how; empty for one that is whole."""
    if not is_sharded(tensor):
        return ""
    sharded: object = tensor
    return f"{sharded.placements} over {tuple(sharded.device_mesh.shape)}"  # type: ignore[attr-defined]


def check_sharding(model: torch.nn.Module | None, parameters: Iterable[torch.Tensor], processes: int) -> None:
    """Check what an optimizer trains that may be sharded, and let FSDP2 average as it says. Raises UsageError."""
    sharded = any(is_sharded(one) for one in parameters)
    if sharded and processes == 1:
        raise UsageError(
            "edl.Optimizer: its parameters are sharded over a mesh of the script's own: start the job by `edl run "
            "--processes S`, and make the mesh of torch.distributed's default group, which is this worker's"
        )
    if sharded and model is None:
        raise UsageError("edl.Optimizer(optimizer): its parameters are sharded: give model=, too")
    for part in () if model is None else model.modules():
        if type(part).__name__ == FSDP1:
            raise UsageError(f"edl.Optimizer: {FSDP1} keeps no parameter by itself: shard the model by fully_shard()")
        # gloo's average in reduce-scatter divides by nothing (pytorch 162338): so FSDP2 is to sum, and to divide.
        force_sum = getattr(part, "set_force_sum_reduction_for_comms", None)
        if force_sum is not None and sharded:
            force_sum(True)
