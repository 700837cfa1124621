"""The ring, made of Horovod: one of its two libraries, `horovod.torch` or `horovod.tensorflow`, in this process.

Owns: what Horovod reads from the environment, entering and leaving, bytes inside the ring, cutting it.
Does not own: gradients and models (`edl.torch`, `edl.tensorflow` call Horovod for those), nor who is in the ring.

Horovod's names for things: its *rendezvous* is the server through which members find each other; its *topology* is
flat here, that is, each worker counts as a host of its own (local size 1). That halves the time to form a ring, because
the meshes per host and across hosts are then trivial. Its price: hierarchical all-reduce is off. What scripts ask of it
(`hvd.local_rank()`, `local_size`, `cross_rank`, `cross_size`) is answered from the place instead.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

from edl.collectives.forming import Forming
from edl.collectives.guard import Guard, plain
from edl.collectives.rendezvous import HOROVODS_PORT
from edl.collectives.ring import FormsInLine
from edl.errors import RingBroken
from edl.protocol.ring import Place

HEADER_BYTES = 4096  # a broadcast up to this size, less the length itself, needs one message instead of two
LENGTH_BYTES = 8
LEAVE_TIMEOUT_S = 10.0  # a healthy ring is left within milliseconds; see HorovodRing.leave


class Bytes(Protocol):
    """Bytes and numbers as tensors of one framework. Both methods raise what the framework raises."""

    def broadcast(self, payload: bytes, root: int, name: str) -> bytes:
        """All members pass payloads of the same length; all get that of `root`."""

    def largest(self, values: list[int], name: str) -> list[int]:
        """The largest of all members' values in each place: signed, of 64 bits."""


class HorovodRing(FormsInLine):
    """`edl.collectives.ring.Ring` on one of Horovod's libraries."""

    def __init__(self, module: str, tensors: Bytes, failed: Callable[[BaseException], bool]) -> None:
        """`module` is Horovod's, `tensors` moves bytes with it, `failed` knows what its broken collectives raise."""
        self._horovod: Any = importlib.import_module(module)
        self._basics: Any = importlib.import_module(f"{module}.mpi_ops")._basics
        self._guard = Guard(self._basics.MPI_LIB_CTYPES._name)
        self._tell_of_hosts(self._basics.MPI_LIB_CTYPES)
        self._forming: Forming | None = None
        self._turn = threading.Lock()  # an abort is over before the next ring begins to form
        self._tensors = tensors
        self._failed = failed
        self._place: Place | None = None
        self._broken = False
        self._timeout_s = LEAVE_TIMEOUT_S
        self.size = 0  # of the ring; 0 outside any. An attribute, because the hot path reads it
        atexit.register(self.leave)

    @property
    def place(self) -> Place | None:
        return self._place

    def enter(self, place: Place, timeout_s: float) -> None:
        self.leave()
        if self._forming is not None and not self._forming.ended:
            raise RingBroken("Horovod still holds on to a ring that did not form")
        if self._basics.is_initialized():  # by the script's own hvd.init()
            self._horovod.shutdown()
        self._broken, self._timeout_s = False, timeout_s
        with forming_environment(place, timeout_s, keep_elastic=bool(self._basics.nccl_built())):
            with self._turn:
                self._guard.set_hurry(False)
                self._guard.set_host(place.address)
                self._forming = Forming(self._basics.MPI_LIB_CTYPES, self._guard, place.generation)
            self._forming.wait(timeout_s)
        self._horovod.init()  # the native part is done by now; this is the rest of it, in Python
        atexit.unregister(self._basics.shutdown)  # each init() registers it once more; ours is in place already
        self._place, self.size = place, place.size
        self._guard.set_standing(True)

    def _tell_of_hosts(self, library: Any) -> None:
        """Scripts ask Horovod's Python part, which looks these functions up in its native part, anew each time."""
        for what in ("local_rank", "local_size", "cross_rank", "cross_size"):
            name = f"horovod_{what}"
            setattr(library, name, partial(self._of_hosts, what, getattr(library, name)))

    def _of_hosts(self, what: str, horovods: Callable[[], int]) -> int:
        return horovods() if self._place is None else int(getattr(self._place, what))

    def leave(self) -> None:
        if self._place is None:
            return
        # A clean shutdown is negotiated between all members. If one of them is gone or frozen, it ends in a hurry;
        # gloo's own time-out would be tens of seconds. If one is merely the first to be through with it, no
        # member needs anything of another any more.
        if self._broken:
            self.abort()
        rescue = threading.Timer(self._timeout_s, self.abort)
        rescue.daemon = True
        rescue.start()
        try:
            self._horovod.shutdown()
        finally:
            rescue.cancel()
            self._place, self.size = None, 0
            self._guard.set_standing(False)
            self._guard.set_hurry(False)

    def broadcast(self, payload: bytes | None, root: int) -> bytes:
        place = self._seat()
        sending = place.rank == root
        if sending and payload is None:
            raise ValueError("the root of a broadcast must pass a payload")
        if place.size == 1:
            return payload or b""
        head = _pack(payload) if sending and payload is not None else bytes(HEADER_BYTES)
        with self.failing():
            head = self._tensors.broadcast(head, root, "edl.broadcast.head")
            length = int.from_bytes(head[:LENGTH_BYTES], "little")
            if length <= HEADER_BYTES - LENGTH_BYTES:
                return head[LENGTH_BYTES : LENGTH_BYTES + length]
            whole = payload if sending and payload is not None else bytes(length)
            return self._tensors.broadcast(whole, root, "edl.broadcast.body")

    def agree(self, value: int) -> int:
        if not 0 <= value < 2**53:
            raise ValueError(f"a value to agree on must be in 0..2**53-1, not {value}")
        if self._seat().size == 1:
            return value
        with self.failing():
            return self._tensors.largest([value], "edl.agree")[0]

    def same(self, value: int) -> bool:
        if self._seat().size == 1:
            return True
        signed = value - 2**64 if value >= 2**63 else value
        with self.failing():
            most, least = self._tensors.largest([signed, ~signed], "edl.same")
        return most == ~least

    def abort(self, given_up: range | None = None) -> None:
        with self._turn:
            forming = self._forming
            if forming is None or (given_up is not None and forming.generation not in given_up):
                return
            forming.give_up()
            self._guard.cut()

    @contextlib.contextmanager
    def failing(self) -> Iterator[None]:
        """Inside, whatever the framework raises for a failed collective becomes RingBroken."""
        try:
            yield
        except Exception as error:
            if isinstance(error, RingBroken) or not self.is_failure(error):
                raise
            raise RingBroken(f"a collective of generation {self._generation()} failed: {plain(str(error))}") from error

    def is_failure(self, error: BaseException) -> bool:
        """Whether the framework raised this because a collective failed; if so, the ring counts as broken."""
        failed = isinstance(error, RingBroken) or self._failed(error)
        self._broken = self._broken or failed
        return failed

    def _seat(self) -> Place:
        if self._place is None:
            raise RingBroken("this process is in no ring")
        return self._place

    def _generation(self) -> int:
        return self._place.generation if self._place else 0


def _pack(payload: bytes) -> bytes:
    head = len(payload).to_bytes(LENGTH_BYTES, "little") + payload[: HEADER_BYTES - LENGTH_BYTES]
    return head.ljust(HEADER_BYTES, b"\0")


# ---------------------------------------------------------------------------------------------------- environment


def prepare_environment(environ: dict[str, str] | os._Environ[str] = os.environ) -> None:
    """What must be there before the user's script touches Horovod itself.

    With HOROVOD_ELASTIC=1 Horovod looks up sizes when an operation runs instead of when it is traced, and its own
    optimizers keep their hooks in a ring of one: a solo ring would freeze both.
    """
    environ.setdefault("HOROVOD_ELASTIC", "1")
    environ.setdefault("HOROVOD_CPU_OPERATIONS", "gloo")  # tensors on a GPU go by what Horovod was built with
    environ.setdefault("HOROVOD_LOG_LEVEL", "fatal")  # a broken ring is reported once, by us


def variables(place: Place, timeout_s: float) -> dict[str, str | None]:
    """The environment of one place; None means: must not be set. What users tune (cycle time, ...) stays."""
    found = place.rendezvous != ""
    return {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_GLOO_IFACE": place.interface,
        "HOROVOD_HOSTNAME": place.worker,
        "HOROVOD_RANK": str(place.rank),
        "HOROVOD_SIZE": str(place.size),
        "HOROVOD_LOCAL_RANK": "0",
        "HOROVOD_LOCAL_SIZE": "1",
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": place.rendezvous if found else None,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": HOROVODS_PORT if found else None,
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(max(1, math.ceil(timeout_s))),
    }


@contextlib.contextmanager
def forming_environment(place: Place, timeout_s: float, keep_elastic: bool) -> Iterator[None]:
    """Sets the variables of `place`, and hides HOROVOD_ELASTIC while the ring forms.

    With it, a second init() first asks the rendezvous for the rank that we know already, and one without a rendezvous
    (a solo ring) crashes. Only NCCL builds need it while they form: it lets NCCL's collectives be aborted.
    """
    _assign(variables(place, timeout_s))
    elastic = os.environ.get("HOROVOD_ELASTIC")
    if not keep_elastic or place.rendezvous == "":
        os.environ.pop("HOROVOD_ELASTIC", None)
    try:
        yield
    finally:
        _assign({"HOROVOD_ELASTIC": elastic})


def _assign(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
