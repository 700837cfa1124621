"""Averaging among the processes of one worker: gradients that the script's own meshes do not average.

FSDP2 averages what it shards. What lies whole in each process, or is divided along another dimension of the mesh as by
tensor parallel, is averaged here, over the processes that divide the worker's samples (`among=`).

Owns: which gradients these are, and their mean. Does not own: which samples a process has (`edl.trainer.data.among`),
nor the mean over workers (`edl.torch.torch_reducer`).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist

from edl.errors import UsageError
from edl.torch.sharded import is_sharded, local_of, mesh_of
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


def average_within(
    among: Among, names: Mapping[torch.Tensor, str], by_fsdp: Mapping[torch.Tensor, frozenset[int]]
) -> None:
    """Replace gradients by their mean over the processes of `among`, which call it at the same places. One that no
    process has stays away. `by_fsdp`: over which processes FSDP2 averages each. Raises JobFailed where a process has
    ended, UsageError where processes hold different parts of a parameter and no averaging of the two is right.
    """
    by_type: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for one, name in names.items():
        if one.requires_grad and not _is_averaged(one, name, among.members, by_fsdp.get(one, frozenset())):
            local = local_of(one)
            by_type.setdefault((local.dtype, local.device), []).append(one)
    for mine in by_type.values():
        _average(among, mine)


def _is_averaged(parameter: torch.Tensor, name: str, members: frozenset[int], by_fsdp: frozenset[int]) -> bool:
    """Tell whether FSDP2 has averaged the parameter's gradient over these processes."""
    holding = members & mesh_of(parameter) if is_sharded(parameter) else frozenset()
    if len(holding) < 2:
        return False
    if not members <= by_fsdp:
        raise UsageError(
            f"processes {sorted(members)} of this worker divide its samples (among=), and {sorted(holding)} of them "
            f"hold parts of {name}, which fully_shard() averages over {sorted(by_fsdp) or 'none'}: let among= be the "
            "mesh, or a dimension of it, that fully_shard() has; processes of tensor parallel take the same samples"
        )
    return True


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
