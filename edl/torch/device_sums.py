"""Gradients of one ring that lie on GPUs, summed up there by NCCL: they do not pass through the host's memory.

NCCL wants a GPU for each member. So members say which one is theirs while their ring forms, and where one has none, or
two have the same, gloo sums up for all of them, by way of the host's memory.

An operation of NCCL's is waited for by the GPU and not by the host. But whether gradients were summed up must be known
before they are used (I8), so the host waits, too, at the end of a backward pass. What is stuck is freed by `abort()`.
It may take long, so a thread of its own does it, which waits for that.

NCCL opens its connections and loads its kernels with its first operations. These are done while the ring forms.

Owns: the group, who has which GPU, and what is under way there. Does not own: the ring (`edl.torch.groups`), nor which
gradients travel together (`edl.torch.buckets`).
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch._C._distributed_c10d import Store

from edl.protocol.ring import Place
from edl.torch.streams import beside

NO_GPU = b""
SUMMED = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
WARM = (1, 1 << 20)  # elements: NCCL sums up few in another way than many, over other connections
NO_TIMEOUT = timedelta(days=365)  # torch's own time-out ends the process: the leader says which member is stuck
END_S = 10.0  # for what is stuck to be freed
POLL_S = 0.00005  # how often the host looks whether a GPU is through


class Summing(Protocol):
    """What sums up on the GPUs of a ring's members."""

    def connect(self) -> None:
        """All members do. Raises RuntimeError."""

    def begin(self, tensor: torch.Tensor) -> Callable[[], object]:
        """As `DeviceSums.begin`."""

    def through(self) -> Callable[[], bool]:
        """Whether all that the GPU is to do by now is done."""

    def abort(self) -> None:
        """Free what is stuck. Takes its time."""


@dataclass(frozen=True)
class Gpu:
    """Where the gradients of this worker lie."""

    device: torch.device
    dtypes: frozenset[torch.dtype]

    def name(self) -> bytes:
        """What tells it from those of all other members, as NCCL does: by the host, which NCCL_HOSTID may name."""
        if not torch.distributed.is_nccl_available():
            return NO_GPU
        found = torch.cuda.get_device_properties(self.device)
        return f"{os.environ.get('NCCL_HOSTID', '')}:{found.uuid}".encode()

    def joined(self, store: Store, place: Place) -> Summing:
        return _Nccl(self.device, store, place)


def each_has_its_own(names: Sequence[bytes]) -> bool:
    return NO_GPU not in names and len(set(names)) == len(names)


def prepare_environment(environ: dict[str, str] | os._Environ[str] = os.environ) -> None:
    """What torch and NCCL read when a group is made. A broken ring is reported once, by us, and ends no process."""
    environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")
    environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "0")
    environ.setdefault("TORCH_NCCL_RANKS_PER_ROOT", str(1 << 30))  # with more than one root it wants more of a store


class DeviceSums:
    """Of one ring. `give_up` belongs to any thread."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._summing: Summing | None = None
        self._store: Store | None = None  # torch keeps only its half of it
        self._unwanted = threading.Event()
        self._freed = threading.Event()
        self._under_way: list[Callable[[], object]] = []  # not known to be through; they hold their tensors

    def form(self, place: Place, of_all: Callable[[bytes], list[bytes]]) -> Callable[[], bool]:
        """What is returned says whether it stands. `of_all` gives each member's bytes, by rank. Raises RuntimeError."""
        with beside(self._gpu.device):
            self._store = _FirstSays(of_all)
            summing = self._summing = self._gpu.joined(self._store, place)
            threading.Thread(target=self._free, args=(summing,), name="edl-nccl", daemon=True).start()
            summing.connect()
            for dtype, size in itertools.product(self._gpu.dtypes & SUMMED or {torch.float32}, WARM):
                self.begin(torch.zeros(size, dtype=dtype, device=self._gpu.device))()
            return summing.through()

    def takes(self, tensor: torch.Tensor) -> bool:
        return tensor.device == self._gpu.device and tensor.dtype in SUMMED

    def begin(self, tensor: torch.Tensor) -> Callable[[], object]:
        """All members' tensors are to be added up in place. After what is returned is called, whatever comes in the
        device's stream comes after that. Both raise RuntimeError.
        """
        if self._summing is None:
            raise RuntimeError("the group is closed")
        wait = self._summing.begin(tensor)
        self._under_way.append(wait)
        return wait

    @property
    def busy(self) -> bool:
        """Something was begun, and is not known to be through."""
        return bool(self._under_way)

    def through(self) -> Callable[[], bool]:
        """Whether all that the GPU is to do by now is done."""
        return (lambda: True) if self._summing is None else self._summing.through()

    def settled(self) -> None:
        """All that was begun is through."""
        self._under_way.clear()

    def give_up(self) -> None:
        """What is under way, if anything is. Comes back at once."""
        self._unwanted.set()

    def close(self) -> None:
        """All members are through with it, or it was given up. Raises nothing."""
        self.give_up()
        if self._summing is not None:
            self._freed.wait(END_S)
            self._under_way.clear()
            self._summing = None

    def _free(self, summing: Summing) -> None:
        self._unwanted.wait()
        summing.abort()
        self._freed.set()


class _Nccl:
    """`Summing` by torch's group of NCCL."""

    def __init__(self, device: torch.device, store: Store, place: Place) -> None:
        from torch._C._distributed_c10d import ProcessGroupNCCL

        if place.interface:
            os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={place.interface}")  # NCCL reads it once
        options: Any = ProcessGroupNCCL.Options()
        options._timeout = NO_TIMEOUT
        self._device = device
        self._group: Any = ProcessGroupNCCL(store, place.rank, place.size, options)

    def connect(self) -> None:
        self._group.eager_connect_single_device(self._device)

    def begin(self, tensor: torch.Tensor) -> Callable[[], object]:
        wait: Callable[[], object] = self._group.allreduce([tensor]).wait
        return wait

    def through(self) -> Callable[[], bool]:
        query: Callable[[], bool] = torch.cuda.current_stream(self._device).record_event().query
        return query

    def abort(self) -> None:
        self._group.abort()


class _FirstSays(Store):
    """What NCCL asks for while it forms: what its first member has written. All ask once, at the same time."""

    def __init__(self, of_all: Callable[[bytes], list[bytes]]) -> None:
        super().__init__()
        self._of_all = of_all

    def set(self, key: str, value: Any) -> None:  # noqa: ARG002
        """Raises RingBroken."""
        self._of_all(value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:  # noqa: ARG002
        """Raises RingBroken."""
        return self._of_all(b"")[0]
