"""torch's ring made of Horovod.

Owns: the calls of `horovod.torch` for tensors. Does not own: the ring itself (`edl.collectives.horovod_ring`), nor what
scripts call by name (`edl.torch.torch_horovod_names`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import horovod.torch as hvd
import torch
from horovod.torch import mpi_ops

from edl import ownership
from edl.collectives.horovod_engine import RingEngine
from edl.collectives.horovod_ring import HorovodRing
from edl.collectives.library_guard import plain
from edl.collectives.name_warmup import Named
from edl.collectives.ring_port import of_all_members
from edl.errors import RingBroken, UsageError
from edl.protocol.assignment import Place
from edl.torch.absence import AbsentGradients
from edl.torch.cuda_streams import beside
from edl.torch.nccl_sums import WARM, Gpu
from edl.torch.tensor_ring import as_real, scale, scaled_rows

AVERAGE, DIVISOR, ALL_RANKS = hvd.Average, 1, 0  # of Horovod's native calls; only with ROCm does the framework divide
IS_ROCM = hvd.rocm_built()
CONVERTED = {torch.bfloat16: torch.float32}  # what Horovod does not take, and what carries it


class TorchCollectives:
    """`edl.collectives.horovod_ring.Collectives` with torch's tensors."""

    def broadcast(self, payload: bytes, root: int, name: str) -> bytes:
        tensor = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        hvd.broadcast_(tensor, root, name=name)
        return tensor.numpy().tobytes()

    def largest(self, values: Sequence[int], name: str) -> list[int]:
        return self.largest_begun(values, name)()

    def largest_begun(self, values: Sequence[int], name: str) -> Callable[[], list[int]]:
        handle = hvd.allreduce_async_(torch.tensor(values, dtype=torch.int64), op=hvd.Max, name=name)
        return lambda: hvd.synchronize(handle).tolist()

    def largest_in(self, library: Any, values: list[int], name: str) -> list[int]:
        tensor = torch.tensor(values, dtype=torch.int64)
        with _aside():
            library.horovod_torch_wait_and_clear(_begun_in(library, tensor, name, hvd.Max))
        return tensor.tolist()

    def reduce_zeros(self, library: Any, tensors: Sequence[Named]) -> None:
        zeros = [_carried(torch.zeros(one.shape, dtype=getattr(torch, one.kind))) for one in tensors]
        with _aside():
            handles = [_begun_in(library, zero, one.name) for zero, one in zip(zeros, tensors, strict=True)]
            for handle in handles:
                library.horovod_torch_wait_and_clear(handle)


class _Refusing:
    """A stand-in for Horovod's native library in a forked child, where that library's thread would never answer."""

    def __getattr__(self, name: str) -> Any:
        raise UsageError(f"{name.removeprefix('horovod_torch_')}: {ownership.FORKED}")


def _refuse_tensors() -> None:
    mpi_ops.mpi_lib = _Refusing()


def _failed(error: BaseException) -> bool:
    return isinstance(error, hvd.HorovodInternalError)


class TorchHorovodRing(HorovodRing):
    """`edl.torch.tensor_ring.TensorRing`."""

    def __init__(
        self, gpu: Callable[[], Gpu | None] = lambda: None, named: Callable[[], Sequence[Named]] = tuple
    ) -> None:
        """`gpu`: where the gradients of this worker lie, if all of them do; `named`: those in main memory. Both are
        asked when a ring is formed.
        """
        super().__init__("horovod.torch", TorchCollectives(), _failed, named)
        self._gpu = gpu
        ownership.in_children(_refuse_tensors)

    def enter(self, place: Place, timeout_s: float) -> None:
        super().enter(place, timeout_s)
        self._begin_nccl(self._engine, place)

    def prepare(self, place: Place, timeout_s: float, *, all_prepare: bool) -> None:
        spare = self._spare
        super().prepare(place, timeout_s, all_prepare=all_prepare)
        assert spare is not None  # it has formed it
        self._begin_nccl(spare, place)

    def _begin_nccl(self, engine: RingEngine, place: Place) -> None:
        """Begin NCCL, as each member does in whichever way it forms the ring: so its first step begins nothing. Raises
        RingBroken.
        """
        if place.size > 1 and hvd.nccl_built():
            with _aside():
                _warm(engine.library.taker, self._gpu(), f"edl.warm.{place.generation}")

    def averaging(self) -> ByName:
        return ByName()

    def sum_begun(self, tensor: torch.Tensor, name: str) -> Callable[[], None]:
        with self.failing():
            handle = hvd.allreduce_async_(tensor, name=name, op=hvd.Sum)

        def wait() -> None:
            with self.failing():
                hvd.synchronize(handle)

        return wait

    def mean(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        with self.failing():
            found: torch.Tensor = hvd.allreduce(_carried(tensor), name=name, op=hvd.Average)
        return torch.view_as_complex(found) if tensor.is_complex() else found.to(tensor.dtype)

    def gathered(self, mine: bytes, name: str) -> list[bytes]:  # noqa: ARG002 - messages have names of their own
        return of_all_members(self, mine)

    def broadcast_begun(self, contents: torch.Tensor, root: int, name: str) -> Callable[[], None]:
        with self.failing():
            handle = hvd.broadcast_async_(contents, root, name=name)

        def wait() -> None:
            with self.failing():
                hvd.synchronize(handle)

        return wait


class ByName(AbsentGradients):
    """`edl.torch.tensor_ring.Averaging`: Horovod pairs up by name what workers begin in any order, and fuses it.

    A gradient of its own memory is one native call, past Horovod's functions in Python, which look up again for each
    tensor what stays the same: they take twice the time of the call itself.
    """

    def __init__(self) -> None:
        super().__init__()
        self._library: Any = None  # of Horovod's, whose turn it is
        self._calls: dict[tuple[torch.dtype, bool], Callable[..., int]] = {}  # of it, by type and whether on a GPU
        self._handles: list[tuple[int, torch.Tensor]] = []  # and what Horovod writes into
        self._waits: list[Callable[[], None]] = []  # for the others

    def expect(self, parameters: Iterable[torch.Tensor]) -> None:  # noqa: ARG002 - Horovod need not know of them
        if self._library is not mpi_ops.mpi_lib:
            self._library, self._calls = mpi_ops.mpi_lib, {}

    def begin(self, parameter: torch.Tensor, gradient: torch.Tensor, name: str, factor: float) -> None:
        kind = gradient.dtype, gradient.is_cuda
        plain_memory = gradient.layout is torch.strided and gradient.is_contiguous() and not IS_ROCM
        enqueue = (self._calls.get(kind) or self._call_for(kind, gradient)) if plain_memory else None
        if enqueue is None:
            if gradient.is_sparse:
                self.know_sparse(parameter, gradient.sparse_dim())
            with _broken_ring():
                self._waits.append(_begun(parameter, gradient, name, factor))
            return
        # The ring's average of (own share * size * gradient) is the sum of (own share * gradient). The factor cannot be
        # Horovod's prescale_factor: that one has to be the same on all ranks.
        if factor != 1.0:
            scale(gradient, factor)
        try:  # as `hvd.allreduce_async_(gradient, name=name)` does
            handle = enqueue(gradient, gradient, DIVISOR, name.encode(), AVERAGE, 1.0, 1.0, ALL_RANKS)
        except RuntimeError as error:
            raise RingBroken(plain(str(error))) from error
        self._handles.append((handle, gradient))

    def flush(self) -> None:
        """Do nothing: gradients are on their way."""

    def wait(self) -> None:
        with _broken_ring():
            for handle, _ in self._handles:
                mpi_ops.mpi_lib.horovod_torch_wait_and_clear(handle)
            for wait in self._waits:
                wait()

    def drop(self) -> None:
        self._handles.clear()
        self._waits.clear()

    def _call_for(self, kind: tuple[torch.dtype, bool], gradient: torch.Tensor) -> Callable[..., int] | None:
        """Find Horovod's native call. None: Horovod takes no such numbers, and they are carried by others."""
        if gradient.dtype in CONVERTED or gradient.is_complex():
            return None
        name = mpi_ops._check_function(mpi_ops._allreduce_function_factory, gradient)
        call: Callable[..., int] = getattr(self._library, name)
        self._calls[kind] = call
        return call


def _warm(module: Any, gpu: Gpu | None, name: str) -> None:
    """NCCL connects with its first operation: let that be here, and not in the first step. Raises RuntimeError."""
    device = torch.device("cpu") if gpu is None else gpu.device
    with beside(device):
        for number, size in enumerate(WARM):
            handle = _begun_in(module, torch.zeros(size, device=device), f"{name}.{number}")
            module.horovod_torch_wait_and_clear(handle)


def _begun_in(library: Any, tensor: torch.Tensor, name: str, op: int = AVERAGE) -> int:
    """Begin a reduction in place. Horovod keeps the tensor for as long as it needs it."""
    enqueue = getattr(library, mpi_ops._check_function(mpi_ops._allreduce_function_factory, tensor))
    handle: int = enqueue(tensor, tensor, DIVISOR, name.encode(), op, 1.0, 1.0, ALL_RANKS)
    return handle


@contextlib.contextmanager
def _broken_ring() -> Iterator[None]:
    """Raise RingBroken for a broken ring: Horovod's native part says it by RuntimeError."""
    try:
        yield
    except RuntimeError as error:
        raise RingBroken(plain(str(error))) from error


@contextlib.contextmanager
def _aside() -> Iterator[None]:
    """Raise RingBroken as `_broken_ring` does, also in a ring that another thread leaves meanwhile: then Horovod knows
    its handles no more.
    """
    try:
        with _broken_ring():
            yield
    except ValueError as error:
        raise RingBroken(plain(str(error))) from error


def _carried(tensor: torch.Tensor) -> torch.Tensor:
    """Return a dense tensor as Horovod takes it: the same one where it does."""
    return as_real(tensor.to(CONVERTED.get(tensor.dtype, tensor.dtype)))


def _begun(parameter: torch.Tensor, gradient: torch.Tensor, name: str, factor: float) -> Callable[[], None]:
    if gradient.is_sparse:
        return _sparse_begun(parameter, gradient, name, factor)
    return _copy_begun(gradient, name, factor)


def _copy_begun(gradient: torch.Tensor, name: str, factor: float) -> Callable[[], None]:
    """Begin to average a copy: Horovod wants contiguous memory; channels_last gradients, for one, are not."""
    copy = gradient.to(CONVERTED.get(gradient.dtype, gradient.dtype)).resolve_conj().contiguous()
    scale(copy, factor)
    handle = hvd.allreduce_async_(as_real(copy), name=name, op=hvd.Average)

    def wait() -> None:
        hvd.synchronize(handle)
        gradient.copy_(copy)

    return wait


def _sparse_begun(parameter: torch.Tensor, gradient: torch.Tensor, name: str, factor: float) -> Callable[[], None]:
    """Begin to gather all ranks' rows, side by side. The share is applied to the values."""
    rows = scaled_rows(gradient.to(CONVERTED.get(gradient.dtype, gradient.dtype)), factor)
    gathering: Any = hvd.sparse_allreduce_async(rows, name=name, op=hvd.Average)

    def wait() -> None:
        parameter.grad = gathering().to(gradient.dtype)

    return wait
