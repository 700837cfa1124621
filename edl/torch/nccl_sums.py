"""Gradients of one ring that lie on GPUs, summed up there by NCCL: they do not pass through the host's memory.

NCCL wants a GPU for each member. So members say which one is theirs while their ring forms. Where one has none, or two
have the same, gloo sums up for all of them, by way of the host's memory.

NCCL's group takes long to form, so no step waits for it: until all members have it, gloo sums up. Members tell each
other in rounds how far they are: beside the ring before, while this one is prepared; else before the gradients of each
step, as long as that is open. What NCCL's first member has to tell the others goes along. If one cannot have it, all
leave it.

An operation of NCCL's is waited for by the GPU and not by the host. But whether gradients were summed up must be known
before they are used (I8), so the host waits, too, at the end of a backward pass. What is stuck is freed by `abort()`.
It may take half a second, so a thread of its own does it, which waits for that.

NCCL opens its connections and loads its kernels with its first operations. These are part of forming it.

Owns: the group, who has which GPU, whether all have it, and what is under way there. Does not own: the ring
(`edl.torch.process_groups`), nor which gradients travel together (`edl.torch.buckets`).
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from typing import Any, Protocol

import torch
from torch.distributed.distributed_c10d import Store

from edl.errors import said_of
from edl.protocol.assignment import Place
from edl.torch.cuda_streams import beside

logger = logging.getLogger("edl")

NO_GPU = b""
SUMMED = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
WARM = (1, 1 << 20)  # elements: NCCL sums up few in another way than many, over other connections
NO_TIMEOUT = timedelta(days=365)  # torch's own ends the process: the leader says which member is stuck
END_S = 10.0  # for what is stuck to be freed
POLL_S = 0.00005  # how often the host looks whether a GPU is through
FIRST_BYTES = 256  # room for what the first member of NCCL's group tells the others, with its length
_FREEING = threading.Lock()  # one group is freed before the next begins; whether they could meet was not measured


class NcclState(IntEnum):
    """The state of a member's NCCL group. The members together are at the greatest number."""

    THERE = 0
    COMING = 1
    NEVER = 2


class Summing(Protocol):
    """The operations of NCCL's group that `NcclSums` uses."""

    def connect(self) -> None:
        """Connect to the other members, which all call this. Raises RuntimeError."""

    def begin(self, tensor: torch.Tensor) -> Callable[[], object]: ...

    def through(self) -> Callable[[], bool]:
        """Return a function that tells whether all work that the GPU has been given by now is done."""

    def abort(self) -> None:
        """Free what is stuck. Takes its time."""


@dataclass(frozen=True)
class Gpu:
    """The GPU that holds this worker's gradients."""

    device: torch.device
    dtypes: frozenset[torch.dtype]

    def name(self) -> bytes:
        """Return what tells this GPU from those of all other members, as NCCL does: by the host, which NCCL_HOSTID may
        name.
        """
        if not torch.distributed.is_nccl_available():
            return NO_GPU
        found = torch.cuda.get_device_properties(self.device)
        return f"{os.environ.get('NCCL_HOSTID', '')}:{found.uuid}".encode()

    def joined(self, store: Store, place: Place) -> Summing:
        return _Nccl(self.device, store, place)


def each_has_its_own(names: Sequence[bytes]) -> bool:
    return NO_GPU not in names and len(set(names)) == len(names)


def prepare_groups(environ: dict[str, str] | os._Environ[str] = os.environ) -> None:
    """Set what torch and NCCL read when a group is made. A broken ring is reported once, by edl,
    and ends no process.
    """
    environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")
    environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "0")
    environ.setdefault("TORCH_FR_BUFFER_SIZE", "0")  # else each operation notes where in Python it was begun
    environ.setdefault("TORCH_NCCL_RANKS_PER_ROOT", str(1 << 30))  # with more than one root it wants more of a store


class NcclSums:
    """Sums by NCCL in one ring. Any thread may call `give_up`."""

    def __init__(self, gpu: Gpu, place: Place, timeout_s: float) -> None:
        """Begin to form the group, on a thread of its own."""
        self.stands = False  # all members have it: an attribute, because the hot path reads it
        self.open = True  # whether they have or will
        self._gpu, self._place = gpu, place
        self._standing = NcclState.COMING
        self._until = time.monotonic() + timeout_s
        self._store = _FirstSays(timeout_s)  # torch keeps only its half of it
        self._summing: Summing | None = None
        self._turn = threading.Lock()
        self._unwanted = threading.Event()
        self._freed = threading.Event()
        self._under_way: list[Callable[[], object]] = []  # not known to be through; they hold their tensors
        for act in (self._form, self._free):
            threading.Thread(target=act, name="edl-nccl", daemon=True).start()

    def says(self) -> bytes:
        """Return what this member tells the others in a round; all members hear the greatest value of each byte."""
        if self._standing is NcclState.COMING and time.monotonic() > self._until:
            self._fail("it did not form in time")
        return bytes([self._standing]) + self._store.told

    def hear(self, told: bytes) -> None:
        """Take what the members have told in a round: all hear the same."""
        self._store.told = told[1:]
        self.open = told[0] == NcclState.COMING
        self.stands = told[0] == NcclState.THERE
        if told[0] == NcclState.NEVER:
            self._fail("another worker cannot have it")

    def takes(self, tensor: torch.Tensor) -> bool:
        return self.stands and tensor.device == self._gpu.device and tensor.dtype in SUMMED

    def begin(self, tensor: torch.Tensor) -> Callable[[], object]:
        """Begin to add up all members' tensors, in place. After the returned function was called, later work in the
        device's stream comes after the sum. Both raise RuntimeError.
        """
        if self._summing is None or self._unwanted.is_set():
            raise RuntimeError("the group is closed")
        wait = self._summing.begin(tensor)
        self._under_way.append(wait)
        return wait

    @property
    def busy(self) -> bool:
        return bool(self._under_way)

    def through(self) -> Callable[[], bool]:
        return (lambda: True) if self._summing is None else self._summing.through()

    def settled(self) -> None:
        """Note that all operations that were begun are done."""
        self._under_way.clear()

    def give_up(self) -> None:
        """Give up operations under way, if there are any. Returns at once."""
        self._unwanted.set()
        self._store.give_up()

    def close(self) -> None:
        """Free the group, once all members are done with it or it was given up. Raises nothing."""
        self.give_up()
        self._freed.wait(END_S)
        self._under_way.clear()
        self._summing = None

    def _form(self) -> None:
        with _FREEING:
            pass  # what the ring before has left is freed
        try:
            with beside(self._gpu.device):
                summing = self._gpu.joined(self._store, self._place)
                with self._turn:
                    self._summing, wanted = summing, not self._unwanted.is_set()
                if wanted:
                    summing.connect()
                    self._warm(summing)
                else:
                    summing.abort()
        except Exception as error:  # noqa: BLE001 - whatever it is, gloo goes on
            self._fail(said_of(error))
        else:
            self._become(NcclState.THERE)

    def _warm(self, summing: Summing) -> None:
        dtypes = self._gpu.dtypes & SUMMED or {torch.float32}
        for dtype, size in itertools.product(dtypes, WARM):
            summing.begin(torch.zeros(size, dtype=dtype, device=self._gpu.device))()
        through = summing.through()
        while not (through() or self._unwanted.is_set()):
            time.sleep(POLL_S)

    def _fail(self, why: str) -> None:
        if self._become(NcclState.NEVER):
            logger.warning("gradients of this ring go by way of the host's memory, and not by NCCL: %s", why)
        self.give_up()

    def _become(self, standing: NcclState) -> bool:
        """Return False where the group had failed, or is not wanted any more."""
        with self._turn:
            if self._standing is NcclState.NEVER or self._unwanted.is_set():
                return False
            self._standing = standing
            return True

    def _free(self) -> None:
        self._unwanted.wait()
        with self._turn:
            summing = self._summing
        if summing is not None:
            with _FREEING:
                summing.abort()
        self._freed.set()


class _Nccl:
    """`Summing` by torch's group of NCCL."""

    def __init__(self, device: torch.device, store: Store, place: Place) -> None:
        from torch.distributed import ProcessGroupNCCL

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
    """The store that NCCL reads while it forms: it holds what NCCL's first member has written. `told` has these bytes
    as they travel in the rounds.
    """

    def __init__(self, timeout_s: float) -> None:
        super().__init__()
        self._timeout_s = timeout_s
        self._told = bytes(FIRST_BYTES)
        self._there = threading.Event()

    @property
    def told(self) -> bytes:
        return self._told

    @told.setter
    def told(self, told: bytes) -> None:
        if told[0]:
            self._told = told
            self._there.set()

    def set(self, key: str, value: Any) -> None:  # noqa: ARG002
        contents = value.encode() if isinstance(value, str) else bytes(value)
        if len(contents) >= FIRST_BYTES:
            raise RuntimeError(f"NCCL tells {len(contents)} bytes, and there is room for {FIRST_BYTES - 1}")
        self.told = (bytes([len(contents)]) + contents).ljust(FIRST_BYTES, b"\0")

    def give_up(self) -> None:
        """Let the readers go: nothing more is told."""
        self._there.set()

    def get(self, key: str) -> bytes:  # noqa: ARG002
        self._there.wait(self._timeout_s)
        if not self._told[0]:
            raise RuntimeError("the first worker of the ring has not told where it is")
        return self._told[1 : 1 + self._told[0]]
