"""Horovod's names in `edl.torch`, for type checkers: the signatures of Horovod 0.28.1, which the torch ring's have too.

`edl.torch.torch_horovod_names` finds them at run time; a test compares the two. Names that edl refuses are not here.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from edl.torch.torch_horovod_names import DistributedOptimizer as DistributedOptimizer
from edl.torch.torch_horovod_names import broadcast_optimizer_state as broadcast_optimizer_state

class _Op: ...
class _Handle: ...

class _ProcessSet:
    process_set_id: int | None
    @property
    def ranks(self) -> list[int] | None: ...
    def included(self) -> bool: ...
    def rank(self) -> int: ...
    def size(self) -> int: ...

class _Compressor:
    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]: ...
    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor: ...

class Compression:
    none: type[_Compressor]
    fp16: type[_Compressor]

class HorovodInternalError(RuntimeError): ...

class SyncBatchNorm(torch.nn.modules.batchnorm._BatchNorm):
    def __init__(
        self,
        num_features: int,
        eps: float = 1e-05,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None: ...

Adasum: Final[_Op]
Average: Final[_Op]
Max: Final[_Op]
Min: Final[_Op]
Product: Final[_Op]
Sum: Final[_Op]
global_process_set: Final[_ProcessSet]

def allgather(tensor: torch.Tensor, name: str | None = None, process_set: _ProcessSet = ...) -> torch.Tensor: ...
def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: _ProcessSet = ...) -> _Handle: ...
def allgather_object(obj: Any, name: str | None = None) -> list[Any]: ...
def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[_Compressor] = ...,
    op: _Op | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: _ProcessSet = ...,
) -> torch.Tensor: ...
def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: _Op | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: _ProcessSet = ...,
) -> torch.Tensor: ...
def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: _Op | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: _ProcessSet = ...,
) -> _Handle: ...
def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: _Op | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: _ProcessSet = ...,
) -> _Handle: ...
def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: _ProcessSet = ...,
) -> Any: ...
def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: _ProcessSet = ...,
) -> _Handle: ...
def barrier(process_set: _ProcessSet = ...) -> None: ...
def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: _ProcessSet = ...
) -> torch.Tensor: ...
def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: _ProcessSet = ...
) -> torch.Tensor: ...
def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: _ProcessSet = ...
) -> _Handle: ...
def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: _ProcessSet = ...
) -> _Handle: ...
def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None, process_set: _ProcessSet = ...) -> Any: ...
def broadcast_parameters(params: Any, root_rank: int) -> None: ...
def ccl_built() -> bool: ...
def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: Any) -> None: ...
def cross_rank() -> int: ...
def cross_size() -> int: ...
def cuda_built() -> bool: ...
def ddl_built() -> bool: ...
def gloo_built() -> bool: ...
def gloo_enabled() -> bool: ...
def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: _ProcessSet = ...
) -> list[torch.Tensor]: ...
def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: _ProcessSet = ...
) -> _Handle: ...
def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[_Compressor] = ...,
    op: _Op | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: _ProcessSet = ...,
) -> list[torch.Tensor]: ...
def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: _Op | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: _ProcessSet = ...,
) -> list[torch.Tensor]: ...
def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: _Op | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: _ProcessSet = ...,
) -> _Handle: ...
def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: _Op | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: _ProcessSet = ...,
) -> _Handle: ...
def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: type[_Compressor] = ...,
    op: _Op = ...,
    process_set: _ProcessSet = ...,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]: ...
def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: _Op = ...,
    process_set: _ProcessSet = ...,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> _Handle: ...
def is_initialized() -> bool: ...
def local_size() -> int: ...
def mpi_built() -> bool: ...
def mpi_enabled() -> bool: ...
def mpi_threads_supported() -> bool: ...
def nccl_built() -> bool: ...
def poll(handle: _Handle) -> bool: ...
def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: type[_Compressor] = ...,
    op: _Op = ...,
    process_set: _ProcessSet = ...,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor: ...
def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: _Op = ...,
    process_set: _ProcessSet = ...,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> _Handle: ...
def rocm_built() -> bool: ...
def sparse_allreduce_async(
    tensor: torch.Tensor, name: str, op: _Op, process_set: _ProcessSet = ...
) -> Callable[[], torch.Tensor]: ...
def start_timeline(file_path: str, mark_cycles: bool = False) -> None: ...
def stop_timeline() -> None: ...
def synchronize(handle: _Handle) -> Any: ...
