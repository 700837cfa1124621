"""The port of a ring as the adapter of PyTorch sees it: bytes and numbers like any ring's, and tensors.

Owns: that port, and which ring stands behind it in this process. Does not own: the rings
(`edl.torch.torch_horovod_ring`, `edl.torch.torch_ring`), of which only the one that is chosen is imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import torch

from edl.collectives.horovod_environment import BUILD, has_horovod
from edl.collectives.name_warmup import Named
from edl.collectives.ring_port import Ring
from edl.config import Settings
from edl.errors import ConfigError, UsageError
from edl.protocol.assignment import RingKind, ring_kind
from edl.torch.absence import blank, no_rows
from edl.torch.nccl_sums import Gpu
from edl.trainer import fork_stand_in

AVERAGED = (  # what both rings average: in these numbers, in others that carry them, or as pairs of them
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex32,
    torch.complex64,
    torch.complex128,
)


class Averaging(Protocol):
    """The gradients of one optimizer, on their way through the ring. One reduction after the other."""

    def expect(self, parameters: Iterable[torch.Tensor]) -> None:
        """Begin a reduction: a gradient of each of these that requires one will come to `begin`, in any order. Raises
        RingBroken.
        """

    def know_sparse(self, parameter: torch.Tensor, dimensions: int = 1) -> None:
        """Note that the gradient of `parameter` is sparse, where there is one, in so many of its dimensions."""

    def nothing(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return what to `begin` with for a parameter without a gradient here: `edl.torch.absence`."""

    def begin(self, parameter: torch.Tensor, gradient: torch.Tensor, name: str, factor: float) -> None:
        """Begin to average this gradient in place, times `factor`. Raises RingBroken."""

    def flush(self) -> None:
        """Note that all gradients are there. Raises RingBroken."""

    def wait(self) -> None:
        """Wait until all gradients are averaged. Raises RingBroken."""

    def drop(self) -> None:
        """Drop what is under way, without waiting for it."""


class TensorRing(Ring, Protocol):
    """The ring as `edl.torch` uses it."""

    size: int  # 0 outside any

    def is_failure(self, error: BaseException) -> bool:
        """Tell whether a failed collective has raised `error`; if so, the ring counts as broken."""

    def averaging(self) -> Averaging:
        """Return the averaging of one more optimizer: all workers wrap theirs in the same order."""

    def sum_begun(self, tensor: torch.Tensor, name: str) -> Callable[[], object]:
        """Begin to add up whole numbers of all members, in place; what is returned waits. Both raise RingBroken."""

    def mean(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        """Return the mean of all members' tensors. Raises RingBroken."""

    def gathered(self, mine: bytes, name: str) -> list[bytes]:
        """Return each member's bytes, by rank, of any length. `name`: what users are told that a member waits for.
        Raises RingBroken. A member that does anything else meanwhile is waited for, and ends no process.
        """

    def broadcast_begun(self, contents: torch.Tensor, root: int, name: str) -> Callable[[], None]:
        """Fill `contents`, bytes, with those of `root`; what is returned waits for that. Both raise RingBroken."""


def kind(settings: Settings) -> RingKind:
    """Return the ring of PyTorch's gradients with these settings, the same before `init` and after it."""
    started_by_horovodrun = settings.stand_in is not None or fork_stand_in.is_due(os.environ)
    return ring_kind(settings.ring, horovod_alone=started_by_horovodrun, has_horovod=has_horovod("torch"))


def chosen(gpu: Callable[[], Gpu | None], named: Callable[[], Sequence[Named]]) -> TensorRing:
    """Return the ring of this process's settings. `gpu`: where its gradients lie, if all of them do; `named`: those in
    main memory. Raises ConfigError.
    """
    settings = Settings.from_given({}, os.environ)
    if kind(settings) is RingKind.TORCH:
        from edl.torch.torch_ring import GroupRing

        return GroupRing(gpu, settings.limb)
    if not has_horovod("torch"):
        raise ConfigError(
            f"Horovod is not installed for PyTorch: train with `edl run --ring torch` (EDL_RING=torch), or {BUILD}"
        )
    try:
        from edl.torch.torch_horovod_ring import TorchHorovodRing
    except ImportError as error:
        why = str(error).partition("\n")[0]
        raise ConfigError(
            f"Horovod does not load with PyTorch {torch.__version__} ({why}): train with `edl run --ring torch` "
            f"(EDL_RING=torch), or {BUILD}"
        ) from error
    return TorchHorovodRing(gpu, named)


def check_kind(parameter: torch.Tensor, name: str) -> None:
    """Raise UsageError for gradients that no ring averages, also in a ring of one worker."""
    if parameter.dtype not in AVERAGED:
        raise UsageError(
            f"edl.Optimizer: {name} is of {parameter.dtype}, and gradients of that kind cannot be averaged: train it "
            "in torch.bfloat16, say, or set requires_grad=False"
        )


def as_real(tensor: torch.Tensor) -> torch.Tensor:
    """View complex numbers as pairs in the same memory: rings add up real numbers."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def scale(gradient: torch.Tensor, factor: float) -> None:
    if factor == 0.0:
        blank(gradient)  # a worker without samples computed on something else, perhaps nan
    elif factor != 1.0:
        (torch.view_as_real(gradient) if gradient.is_complex() else gradient).mul_(factor)  # so -0 stays what it is


def scaled_rows(gradient: torch.Tensor, factor: float) -> torch.Tensor:
    """Return a sparse gradient times `factor`, in memory of its own; without rows where `factor` is 0."""
    if factor == 0.0:
        return no_rows(gradient.shape, gradient._values(), gradient.sparse_dim())
    rows = gradient.coalesce()
    values = rows.values().clone()
    scale(values, factor)
    return torch.sparse_coo_tensor(rows.indices(), values, rows.shape, is_coalesced=True, check_invariants=False)
