"""torch's ring made of Horovod.

Owns: the calls of `horovod.torch` for tensors. Does not own: the ring itself (`edl.collectives.horovod`), nor what
scripts call by name (`edl.torch.horovod_names`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import horovod.torch as hvd
import torch

from edl.collectives.guard import plain
from edl.collectives.horovod import HorovodRing
from edl.errors import RingBroken
from edl.torch.tensor_ring import scale, scaled_rows


class TorchBytes:
    """`edl.collectives.words.Bytes` with torch's tensors."""

    def broadcast(self, payload: bytes, root: int, name: str) -> bytes:
        tensor = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        hvd.broadcast_(tensor, root, name=name)
        return tensor.numpy().tobytes()

    def largest(self, values: list[int], name: str) -> Callable[[], list[int]]:
        handle = hvd.allreduce_async_(torch.tensor(values, dtype=torch.int64), op=hvd.Max, name=name)
        return lambda: hvd.synchronize(handle).tolist()


def _failed(error: BaseException) -> bool:
    return isinstance(error, hvd.HorovodInternalError)


class TorchHorovodRing(HorovodRing):
    """`edl.torch.tensor_ring.TensorRing`."""

    def __init__(self) -> None:
        super().__init__("horovod.torch", TorchBytes(), _failed)

    def averaging(self) -> ByName:
        return ByName()

    def mean(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        with self.failing():
            found: torch.Tensor = hvd.allreduce(tensor, name=name, op=hvd.Average)
        return found

    def broadcast_begun(self, contents: torch.Tensor, root: int, name: str) -> Callable[[], None]:
        with self.failing():
            handle = hvd.broadcast_async_(contents, root, name=name)

        def wait() -> None:
            with self.failing():
                hvd.synchronize(handle)

        return wait


class ByName:
    """`edl.torch.tensor_ring.Averaging`: Horovod pairs up by name what workers begin in any order, and fuses it."""

    def __init__(self) -> None:
        self._waits: list[Callable[[], None]] = []

    def expect(self, parameters: Iterable[torch.Tensor]) -> None:
        """Horovod need not know of them."""

    def begin(self, parameter: torch.Tensor, gradient: torch.Tensor, name: str, factor: float) -> None:
        try:
            self._waits.append(_begun(parameter, gradient, name, factor))
        except hvd.HorovodInternalError as error:  # enqueued into a ring that is broken by now
            raise RingBroken(plain(str(error))) from error

    def flush(self) -> None:
        """They are on their way."""

    def wait(self) -> None:
        try:
            for wait in self._waits:
                wait()
        except hvd.HorovodInternalError as error:
            raise RingBroken(plain(str(error))) from error

    def drop(self) -> None:
        self._waits.clear()


def _begun(parameter: torch.Tensor, gradient: torch.Tensor, name: str, factor: float) -> Callable[[], None]:
    if gradient.is_sparse:
        return _sparse_begun(parameter, gradient, name, factor)
    scale(gradient, factor)
    # The ring's average of (own share * size * gradient) is the sum of (own share * gradient). The factor cannot be
    # Horovod's prescale_factor: that one has to be the same on all ranks.
    if gradient.is_contiguous():
        handle = hvd.allreduce_async_(gradient, name=name, op=hvd.Average)
        return lambda: hvd.synchronize(handle)
    return _copy_begun(gradient, name)


def _copy_begun(gradient: torch.Tensor, name: str) -> Callable[[], None]:
    """Horovod wants contiguous memory; channels_last gradients, for one, are not."""
    copy = gradient.contiguous()
    handle = hvd.allreduce_async_(copy, name=name, op=hvd.Average)

    def wait() -> None:
        hvd.synchronize(handle)
        gradient.copy_(copy)

    return wait


def _sparse_begun(parameter: torch.Tensor, gradient: torch.Tensor, name: str, factor: float) -> Callable[[], None]:
    """All ranks' rows, side by side. The share is applied to the values."""
    gathering: Any = hvd.sparse_allreduce_async(scaled_rows(gradient, factor), name=name, op=hvd.Average)

    def wait() -> None:
        parameter.grad = gathering()

    return wait
