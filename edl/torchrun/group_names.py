"""The names of `torch.distributed` that a script calls, over the group of all workers.

Owns: these names, what each answers, and which are refused. Does not own: the answers (`edl.torchrun.worker_group`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp, distributed_c10d

from edl.errors import UsageError
from edl.torchrun.refusals import ONE_GROUP, REFUSED, SYNC_BATCH_NORM
from edl.torchrun.worker_group import WorkerGroup


class AllWorkers:
    """The group that `new_group()` returns."""

    def rank(self) -> int:
        return dist.get_rank()

    def size(self) -> int:
        return dist.get_world_size()

    def monitored_barrier(self, *_given: Any, **_named: Any) -> None:
        dist.barrier()


class EndedWork:
    """A collective with `async_op=True`, which has ended already."""

    def wait(self, _timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True


class GroupNames:
    """Functions by torch's names; `put()` sets them in `torch.distributed`."""

    def __init__(self, group: WorkerGroup, ended: Callable[[], object] = lambda: None) -> None:
        """`ended` is called where the script leaves its process group."""
        self._group, self._ended = group, ended
        self._backend = ""
        self._all = AllWorkers()

    def put(self) -> None:
        for name in dir(self):
            if not name.startswith("_") and name != "put":
                _set(name, getattr(self, name))
        for name, remedy in REFUSED.items():
            if hasattr(dist, name):
                _set(name, _refusing(name, remedy))
        distributed_c10d._get_default_group = _refuse_torchs_group
        from torch.nn import SyncBatchNorm

        SyncBatchNorm.convert_sync_batchnorm = _refusing(  # type: ignore[method-assign]
            "convert_sync_batchnorm", SYNC_BATCH_NORM, "torch.nn.SyncBatchNorm"
        )

    # ---------------------------------------------------------------------------------------------- begin and end

    def init_process_group(self, backend: str | None = None, *_given: Any, **_named: Any) -> None:
        """Note the backend. What else torch's takes says where other processes are, which edl knows."""
        wanted = str(backend or ("nccl" if torch.cuda.is_available() else "gloo")).lower()
        if "nccl" in wanted and "gloo" not in wanted and not torch.cuda.is_available():
            raise UsageError(
                'init_process_group("nccl"): PyTorch finds no GPU on this machine: take "gloo", or a machine with one'
            )
        self._backend = wanted

    def destroy_process_group(self, group: Any = None) -> None:
        """End the newest mini-batch, if its update is made. The job is left where the script ends. A group that
        `new_group()` has returned may end before.
        """
        self._is_all(group)
        if group is not self._all:
            self._ended()
            self._backend = ""

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return bool(self._backend)

    def get_backend(self, group: Any = None) -> str:
        self._is_all(group)
        return self._backend or "gloo"

    def get_rank(self, group: Any = None) -> int:
        self._is_all(group)
        return self._group.rank()

    def get_world_size(self, group: Any = None) -> int:
        self._is_all(group)
        return self._group.size()

    def get_process_group_ranks(self, group: Any = None) -> list[int]:
        self._is_all(group)
        return list(range(self._group.size()))

    def get_global_rank(self, group: Any, group_rank: int) -> int:
        self._is_all(group)
        return group_rank

    def get_group_rank(self, group: Any, global_rank: int) -> int:
        self._is_all(group)
        return global_rank

    def new_group(self, ranks: Sequence[int] | None = None, *_given: Any, **_named: Any) -> AllWorkers:
        """Return the group of all workers. Raises UsageError for any other."""
        if ranks is not None and sorted(ranks) != list(range(self._group.size())):
            raise UsageError(f"torch.distributed.new_group(ranks={list(ranks)}): {ONE_GROUP}")
        return self._all

    # ------------------------------------------------------------------------------------------------ collectives

    def barrier(self, group: Any = None, async_op: bool = False, **_named: Any) -> EndedWork | None:
        self._is_all(group)
        self._group.meet()
        return EndedWork() if async_op else None

    def all_reduce(
        self, tensor: torch.Tensor, op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False
    ) -> EndedWork | None:
        self._is_all(group)
        _fill(tensor, self._group.reduced("all_reduce", tensor, op))
        return EndedWork() if async_op else None

    def reduce(
        self,
        tensor: torch.Tensor,
        dst: int | None = None,
        op: Any = ReduceOp.SUM,
        group: Any = None,
        async_op: bool = False,
        group_dst: int | None = None,
    ) -> EndedWork | None:
        self._is_all(group)
        found = self._group.reduced("reduce", tensor, op)
        if self._group.rank() == _root(dst, group_dst):
            _fill(tensor, found)
        return EndedWork() if async_op else None

    def all_gather(
        self, tensor_list: list[torch.Tensor], tensor: torch.Tensor, group: Any = None, async_op: bool = False
    ) -> EndedWork | None:
        """Fill the list. It gets as many entries as there are workers, should their number have changed meanwhile."""
        self._is_all(group)
        self._fill_list(tensor_list, self._group.by_rank("all_gather", tensor.detach), tensor)
        return EndedWork() if async_op else None

    def all_gather_into_tensor(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any = None, async_op: bool = False
    ) -> EndedWork | None:
        self._is_all(group)
        parts = self._group.by_rank("all_gather_into_tensor", input_tensor.detach)
        rows = max(1, output_tensor.numel() // max(1, input_tensor.numel()))
        filled = [parts[number] if number < len(parts) else input_tensor.detach() for number in range(rows)]
        with torch.no_grad():
            output_tensor.copy_(torch.stack(filled).reshape(output_tensor.shape))
        return EndedWork() if async_op else None

    def all_gather_object(self, object_list: list[Any], obj: Any, group: Any = None) -> None:
        """Fill the list with plain values. It gets as many entries as there are workers."""
        self._is_all(group)
        self._fill_list(object_list, self._group.by_rank("all_gather_object", lambda: obj), obj)

    def gather(
        self,
        tensor: torch.Tensor,
        gather_list: list[torch.Tensor] | None = None,
        dst: int | None = None,
        group: Any = None,
        async_op: bool = False,
        group_dst: int | None = None,
    ) -> EndedWork | None:
        self._is_all(group)
        found = self._group.by_rank("gather", tensor.detach)
        if gather_list is not None and self._group.rank() == _root(dst, group_dst):
            self._fill_list(gather_list, found, tensor)
        return EndedWork() if async_op else None

    def gather_object(
        self,
        obj: Any,
        object_gather_list: list[Any] | None = None,
        dst: int | None = None,
        group: Any = None,
        group_dst: int | None = None,
    ) -> None:
        self._is_all(group)
        found = self._group.by_rank("gather_object", lambda: obj)
        if object_gather_list is not None and self._group.rank() == _root(dst, group_dst):
            self._fill_list(object_gather_list, found, obj)

    def broadcast(
        self,
        tensor: torch.Tensor,
        src: int | None = None,
        group: Any = None,
        async_op: bool = False,
        group_src: int | None = None,
    ) -> EndedWork | None:
        self._is_all(group)
        _fill(tensor, self._group.of_root("broadcast", tensor.detach, _root(src, group_src)))
        return EndedWork() if async_op else None

    def broadcast_object_list(
        self,
        object_list: list[Any],
        src: int | None = None,
        group: Any = None,
        device: Any = None,  # noqa: ARG002 - torch's signature
        group_src: int | None = None,
    ) -> None:
        self._is_all(group)
        object_list[:] = self._group.of_root("broadcast_object_list", lambda: list(object_list), _root(src, group_src))

    # ----------------------------------------------------------------------------------------------- small parts

    def _fill_list(self, given: list[Any], found: list[Any], own: Any) -> None:
        if self._group.alone:  # its rank is beyond the list: some put their own value there by it
            found = [own] * max(len(given), self._group.rank() + 1)
        for number, value in enumerate(found):
            if number == len(given):
                given.append(value)
            elif isinstance(given[number], torch.Tensor):
                _fill(given[number], value)
            else:
                given[number] = value
        del given[len(found) :]

    def _is_all(self, group: Any) -> bool:
        if group is None or group is self._all or group is distributed_c10d.GroupMember.WORLD:
            return True
        raise UsageError(f"torch.distributed: {ONE_GROUP}; leave group= away")


def _root(rank: int | None, group_rank: int | None) -> int:
    return (group_rank or 0) if rank is None else rank


def _fill(tensor: torch.Tensor, found: torch.Tensor) -> None:
    with torch.no_grad():
        tensor.copy_(found.reshape(tensor.shape))


def _refusing(name: str, remedy: str, module: str = "torch.distributed") -> Callable[..., NoReturn]:
    def refused(*_given: Any, **_named: Any) -> NoReturn:
        raise UsageError(f"{module}.{name}: {remedy}")

    return refused


def _refuse_torchs_group(*_given: Any, **_named: Any) -> NoReturn:
    raise UsageError(
        "what is called here needs torch's own process group, as FSDP and device meshes do: "
        + ONE_GROUP
        + ", and it is "
        "none of torch's: train by DistributedDataParallel"
    )


def _set(name: str, function: Any) -> None:
    for module in (dist, distributed_c10d, sys.modules.get("torch.distributed.device_mesh")):
        if module is not None and hasattr(module, name):
            setattr(module, name, function)
