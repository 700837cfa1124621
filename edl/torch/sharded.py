"""Tensors that the processes of one worker hold in shards: what this process has of them.

Owns: this process's part of a `DTensor`, how it is described, which bytes of the whole each process holds, and what edl
asks of FSDP2. Does not own: what is done with the part: rings, state and fingerprints see nothing else
(`edl.torch.torch_reducer`, `edl.torch.torch_state`); a checkpoint alone has whole tensors (`edl.torch.torch_snapshot`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule

from edl.checkpoints.worker_stages import ElementRun, Sharding, Split, block, writes
from edl.errors import CheckpointError, UsageError

FSDP1 = "FullyShardedDataParallel"


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of a sharded tensor that this process holds; of any other tensor, itself."""
    local: torch.Tensor | None = getattr(tensor, "_local_tensor", None)
    return tensor if local is None else local


def is_sharded(tensor: object) -> bool:
    return getattr(tensor, "_local_tensor", None) is not None


def mesh_of(tensor: torch.Tensor) -> frozenset[int]:
    """Return the processes over which a tensor is sharded, by their numbers in the worker; none of a whole one."""
    mesh: Any = getattr(tensor, "device_mesh", None)
    return frozenset() if mesh is None else frozenset(mesh.mesh.flatten().tolist())


def placement_of(tensor: torch.Tensor) -> str:
    """Say over which mesh a tensor lies, and how; empty for one that is whole."""
    if not is_sharded(tensor):
        return ""
    sharded: object = tensor
    return f"{sharded.placements} over {tuple(sharded.device_mesh.shape)}"  # type: ignore[attr-defined]


def piece_of(tensor: torch.Tensor) -> str:
    """Say which part of a tensor this process holds, as do all that hold the same part; empty for one that is whole."""
    if not is_sharded(tensor):
        return ""
    found: Any = tensor
    at = zip(found.device_mesh.get_coordinate(), found.placements, strict=True)
    divided = [place for place, placement in at if not placement.is_replicate()]
    return f"{divided} over {sorted(mesh_of(tensor))}"


def averaged_by_fsdp(model: torch.nn.Module | None) -> dict[torch.Tensor, frozenset[int]]:
    """Return the processes over which FSDP2 averages the gradient of each parameter, by their numbers in the worker."""
    return {
        one.sharded_param: frozenset(one.mesh_info.mesh.mesh.flatten().tolist())
        for part in ([] if model is None else model.modules())
        for group in _fsdp_groups(part)
        for one in group.fsdp_params
    }


def _fsdp_groups(part: Any) -> Iterator[Any]:
    """Yield FSDP2's groups of parameters, for which it has no public name."""
    if isinstance(part, FSDPModule):
        state: Any = part._get_fsdp_state()
        yield from getattr(state, "_fsdp_param_groups", None) or filter(None, [state._fsdp_param_group])


def held_by(tensor: torch.Tensor, processes: int) -> tuple[tuple[ElementRun, ...], ...]:
    """Return the bytes of a sharded tensor that each process of the worker writes; () of a tensor that is whole."""
    if not is_sharded(tensor):
        return ()
    sharding, places = _sharding(tensor)
    return tuple(
        _in_bytes(tensor, block(sharding, places[process]))
        if process in places and writes(sharding, places[process])
        else ()
        for process in range(processes)
    )


def held_here(tensor: torch.Tensor) -> tuple[ElementRun, ...]:
    """Return the bytes of a tensor, of a sharded one or of one that is whole, that this process holds."""
    if not is_sharded(tensor):
        return (ElementRun(0, tensor.numel() * tensor.element_size()),)
    sharding, _ = _sharding(tensor)
    found: Any = tensor
    return _in_bytes(tensor, block(sharding, tuple(found.device_mesh.get_coordinate())))


def _sharding(tensor: torch.Tensor) -> tuple[Sharding, dict[int, tuple[int, ...]]]:
    """Return how a tensor is sharded, and where each process stands in its mesh."""
    found: Any = tensor
    mesh = found.device_mesh.mesh
    splits = tuple(_split(placement) for placement in found.placements)
    places = {int(mesh[tuple(at)]): tuple(at) for at in torch.ones_like(mesh).nonzero().tolist()}
    return Sharding(tuple(tensor.shape), tuple(mesh.shape), splits), places


def _split(placement: Any) -> Split | None:
    if placement.is_replicate():
        return None
    if placement.is_partial():
        raise CheckpointError("a tensor of the model has sums that are not made yet (Partial)")
    return Split(placement.dim, getattr(placement, "split_factor", 1))


def _in_bytes(tensor: torch.Tensor, ranges: Iterable[ElementRun]) -> tuple[ElementRun, ...]:
    size = tensor.element_size()
    return tuple(ElementRun(one.offset * size, one.length * size) for one in ranges)


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
