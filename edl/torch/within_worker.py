"""The processes of one worker: their default process group, the tensors each holds, and averages among them.

FSDP2 averages what it shards. What lies whole in each process, or is divided along another dimension of the mesh as by
tensor parallel, is averaged here, over the processes that divide the worker's samples (`among=`).

Owns: that group, which gradients are averaged, and their mean. Does not own: which samples a process has
(`edl.trainer.data.sample_ids`), nor the mean over workers (`edl.torch.torch_reducer`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import msgspec
import torch
import torch.distributed as dist
from torch.nn.parameter import is_lazy

from edl.checkpoints.worker_stages import Holding
from edl.core.worker.limb_votes import LANES, Row
from edl.errors import ConfigError, UsageError
from edl.torch.sharded import is_sharded, local_of, mesh_of, piece_of, placement_of
from edl.torch.torch_snapshot import bytes_of
from edl.torch.torch_state import as_bytes
from edl.torch.torch_tensors import whole_form
from edl.trainer.data.sample_ids import Among
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


# A worker of several processes (`--processes`) is to itself what a job of torchrun is: `torch.distributed` is set up
# for its processes, so meshes and `fully_shard` are written as their documentation has them. edl uses a group of its
# own beside that, whose operations never come between the script's.


COME_S = 120.0  # for all processes of a worker to come
NEVER_COME_S = 30 * 86_400.0  # a process that dies ends the wait: its worker's daemon ends the others


class GroupWorld:
    """`edl.trainer.limb_agreement.LimbRows` by a process group of gloo's."""

    def __init__(self, limb: int, processes: int, folder: Path, step_timeout_s: float) -> None:
        """Make the default group in a `folder` that the processes share. Raises ConfigError where one never comes."""
        if dist.is_initialized():
            raise UsageError(
                "edl.init() makes the process group of a worker's processes: leave torch.distributed."
                "init_process_group() away, or call edl.init() first"
            )
        number, count = str(limb), str(processes)
        os.environ.update(RANK=number, LOCAL_RANK=number, WORLD_SIZE=count, LOCAL_WORLD_SIZE=count)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the processes of a worker are on one host
        store = dist.FileStore(str(folder / "world"), processes)  # type: ignore[attr-defined] # torch's own stub
        try:
            store.set(f"edl/{limb}", "here")
            store.wait([f"edl/{one}" for one in range(processes)], timedelta(seconds=COME_S))
            # A collective of the script's may wait while another process saves or evaluates, as a step may.
            timeout = timedelta(seconds=max(COME_S, 2 * step_timeout_s))
            dist.init_process_group("gloo", store=store, rank=limb, world_size=processes, timeout=timeout)
        except (RuntimeError, ValueError) as error:
            raise ConfigError(
                f"not all {processes} processes of this worker came within {COME_S:g} s "
                f"({str(error).splitlines()[0]}): let each call edl.init(), and see what the others have printed"
            ) from error
        self._limb = limb
        self._group: Any = dist.new_group(backend="gloo", timeout=timedelta(seconds=NEVER_COME_S))
        self._rows = [torch.zeros(LANES, dtype=torch.int64) for _ in range(processes)]

    def exchange(self, row: Row) -> list[Row]:
        self._all_gather(self._rows, torch.tensor(row, dtype=torch.int64))
        return [tuple(one.tolist()) for one in self._rows]

    def gather(self, payload: bytes) -> list[bytes]:
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in self._rows]
        self._all_gather(sizes, torch.tensor([len(payload)]))
        lengths = [int(size) for size in sizes]
        sent = torch.frombuffer(bytearray(payload.ljust(max(1, *lengths), b"\0")), dtype=torch.uint8)
        found = [torch.empty_like(sent) for _ in self._rows]
        self._all_gather(found, sent)
        return [one[:length].numpy().tobytes() for one, length in zip(found, lengths, strict=True)]

    def _all_gather(self, found: list[torch.Tensor], mine: torch.Tensor) -> None:
        try:
            dist.all_gather(found, mine, group=self._group)
        except RuntimeError as error:
            raise LimbLost("another process of this worker has ended") from error


SAMPLED = 8  # elements of each tensor


class NamedHolder(Protocol):
    """The models and optimizers of a process, as `TorchHeldTensors` uses them."""

    def tensors(self) -> Iterable[tuple[str, torch.Tensor]]:
        """Return parameters and buffers, named."""

    def buffers(self) -> set[int]:
        """Return which of the tensors are buffers, by `id`."""

    def wrapped(self) -> int:
        """Count the models and optimizers."""

    def among(self) -> Among:
        """Return the processes of this worker that divide its samples."""


class TorchHeldTensors:
    """`edl.trainer.limb_agreement.HeldTensors`."""

    def __init__(self, holder: NamedHolder) -> None:
        self._holder = holder

    def stamp(self) -> tuple[int, frozenset[int]]:
        return self._holder.wrapped(), self._holder.among().members

    def holding(self) -> Holding:
        buffers, firsts, among = self._holder.buffers(), self._firsts(), self._holder.among().members
        named = [(name, tensor) for name, tensor in self._holder.tensors() if not is_lazy(tensor)]
        parameters = [(name, tensor) for name, tensor in named if id(tensor) not in buffers]
        meshes = (mesh_of(tensor) for _, tensor in named)
        return Holding(
            _digest(msgspec.msgpack.encode([(name, whole_form(tensor)) for name, tensor in named])),
            tuple(name for name, _ in parameters),
            tuple(name for name, tensor in named if id(tensor) in buffers),
            tuple(sorted(among.union(*meshes))),
            _digest(*firsts.values()),
            averaged=tuple(sorted(among)),
            placed=tuple(placement_of(tensor) for _, tensor in parameters),
            pieces=tuple(piece_of(tensor) for _, tensor in parameters),
            firsts=tuple(firsts[name] for name, _ in parameters),
        )

    def sample(self) -> str:
        return _digest(*self._firsts().values())

    def _firsts(self) -> dict[str, bytes]:
        """Return the first elements that this process has of each parameter, which come from each device at once."""
        buffers, by_device = self._holder.buffers(), dict[torch.device, dict[str, torch.Tensor]]()
        found = {}
        with torch.no_grad():
            for name, tensor in self._holder.tensors():
                if id(tensor) not in buffers and not is_lazy(tensor):
                    local = local_of(tensor)
                    piece = as_bytes(local.reshape(-1)[:SAMPLED].contiguous())
                    by_device.setdefault(local.device, {})[name] = piece
            for pieces in by_device.values():
                raw, at = bytes(bytes_of(torch.cat(list(pieces.values())))), 0
                for name, piece in pieces.items():
                    found[name] = raw[at : at + len(piece)]
                    at += len(piece)
        return found


def _digest(*contents: Any) -> str:
    found = hashlib.blake2b(digest_size=8)
    for one in contents:
        found.update(one)
    return found.hexdigest()
