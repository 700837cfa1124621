"""Averaging among the processes of one worker: gradients that the script's own meshes do not average.

FSDP2 averages what it shards. What lies whole in each process, or is divided along another dimension of the mesh as by
tensor parallel, is averaged here, over the processes that divide the worker's samples (`among=`).

Owns: which gradients these are, and their mean. Does not own: which samples a process has (`edl.trainer.data.among`),
nor the mean over workers (`edl.torch.torch_reducer`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist

from edl.errors import UsageError
from edl.torch.sharded import is_sharded, local_of
from edl.trainer.data.among import Among
from edl.trainer.limb_agreement import LimbLost

ENDED = "another process of this worker has ended"
DEEPSPEED = (
    "DeepSpeed shards and averages by itself: shard the model by fully_shard() of torch, or leave --processes away"
)
COPIES = (
    "DistributedDataParallel inside a worker of several processes: leave it away; with among= edl.Optimizer averages "
    "over the processes of a worker, too"
)


def average_within(among: Among, parameters: Iterable[torch.Tensor]) -> None:
    """Replace gradients by their mean over the processes of `among`, which call it at the same places. One that no
    process has stays away. Raises JobFailed where a process has ended.
    """
    by_type: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for one in parameters:
        if one.requires_grad and not _has_mesh(one, among.members):
            local = local_of(one)
            by_type.setdefault((local.dtype, local.device), []).append(one)
    for mine in by_type.values():
        _average(among, mine)


def _has_mesh(parameter: torch.Tensor, members: frozenset[int]) -> bool:
    """Tell whether the parameter is sharded over these processes, so that the script's library averages it."""
    found: Any = parameter
    return is_sharded(parameter) and members <= set(found.device_mesh.mesh.flatten().tolist())


def _average(among: Among, parameters: list[torch.Tensor]) -> None:
    pieces = [_gradient(one) for one in parameters]
    there = pieces[0].new_tensor([float(one.grad is not None) for one in parameters])
    packed = torch.cat([*pieces, there])
    try:
        dist.all_reduce(packed, group=among.group)
    except RuntimeError as error:
        raise LimbLost(ENDED) from error
    having = packed[-len(parameters) :].tolist()
    packed.div_(among.count)
    begin = 0
    for one, piece, some in zip(parameters, pieces, having, strict=True):
        if some:
            mean = packed[begin : begin + len(piece)].view(local_of(one).shape)
            if one.grad is None:
                one.grad = torch.zeros_like(one)
            local_of(one.grad).copy_(mean)
        begin += len(piece)


def _gradient(parameter: torch.Tensor) -> torch.Tensor:
    gradient = parameter.grad
    if gradient is None:
        return torch.zeros_like(local_of(parameter)).flatten()
    if gradient.is_sparse:
        raise UsageError("edl.Optimizer: sparse gradients are not averaged over the processes of a worker")
    return local_of(gradient).flatten()


def refuse_copies(model: torch.nn.Module) -> None:
    """Raise UsageError, now or in the first forward pass, where DistributedDataParallel averages the model's gradients:
    it does so beside edl, in the same memory. Likewise where DeepSpeed does.
    """
    if any(type(part).__module__.partition(".")[0] == "deepspeed" for part in model.modules()):
        raise UsageError(f"edl.Optimizer: {DEEPSPEED}")
    kind = torch.nn.parallel.DistributedDataParallel
    if any(isinstance(part, kind) for part in model.modules()):
        raise UsageError(f"edl.Optimizer: {COPIES}")

    def look(*_: object) -> None:
        if getattr(kind, "_active_ddp_module", None) is not None:
            raise UsageError(COPIES)
        handle.remove()

    handle = model.register_forward_pre_hook(look)
