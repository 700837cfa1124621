"""The ring of PyTorch without Horovod: torch's own process groups, two rings of them side by side where one is formed.

Owns: which ring this process sits in, the next one and the thread that forms it, and the end of those before. Does not
own: their groups (`edl.torch.process_groups`), gradients (`edl.torch.buckets`), nor who is in a ring.

A ring is formed in a thread of its own, so that a stuck attempt can be left alone, and ended in that thread once it is
left: that may take long, too, and from Python 3.12 on a process that ends can start no thread. Nothing in torch is
global to a process but the default group, which is not used. So an attempt that is stuck in gloo, for a member that
froze while all connect, costs a thread until gloo's own time-out, and no later ring anything.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch
from torch.distributed import ReduceOp
from torch.distributed.distributed_c10d import AllreduceOptions

from edl import ownership
from edl.collectives.byte_collectives import ByteCollectives, spoken
from edl.collectives.horovod_environment import tell_scripts
from edl.collectives.rendezvous_board import mesh_of
from edl.collectives.ring_port import Pulse, is_fault, never
from edl.errors import RingBroken, RingFault, UsageError
from edl.protocol.assignment import Place
from edl.torch.buckets import Buckets
from edl.torch.group_collectives import rooted
from edl.torch.nccl_sums import Gpu, prepare_groups
from edl.torch.process_groups import CLOSE_TIMEOUT_S, ProcessGroups
from edl.torch.tensor_ring import as_real


class GroupForming:
    """An attempt to form a ring. It is waited for once."""

    def __init__(self, groups: ProcessGroups, timeout_s: float, *, all_prepare: bool = False) -> None:
        """`all_prepare`: each member forms it beside a ring that works, so it takes its time to form as a whole."""
        self._all_prepare = all_prepare
        self.groups = groups
        self._timeout_s = timeout_s
        self._turn = threading.Lock()
        self._over = threading.Event()  # one way or the other
        self._reason = ""  # why it came to nothing
        self._formed = False
        self.left = threading.Event()  # no caller needs the ring any more
        self.thread = threading.Thread(target=self._form, name="edl-forming", daemon=True)
        self.given_up = ""  # why, also where that came too late for the attempt

    @property
    def generation(self) -> int:
        return self.groups.place.generation

    def wait(self) -> ProcessGroups:
        """Raises RingBroken, in time."""
        self.thread.start()
        if not self._over.wait(self._timeout_s):
            self.give_up(f"not all members came within {self._timeout_s:g} s")
        if self._reason:
            raise RingBroken(f"the ring did not form: {self._reason}")
        return self.groups

    def give_up(self, reason: str = "it was aborted") -> None:
        """Give the attempt up. Any thread may call this."""
        self.given_up = self.given_up or reason
        if self._end(reason):
            self.groups.give_up(reason)

    def _form(self) -> None:
        try:
            self.groups.form()
            if self._all_prepare:
                self.groups.await_sums()
        except RingBroken as error:
            self._end(self.groups.broken or str(error))
        except BaseException as error:
            self._end(str(RingFault.of(error)))
            raise
        else:
            self._end("")
        if not self._formed:
            self.groups.give_up(self._reason)
            self.groups.close()
        elif self.groups.place.size > 1:
            self.left.wait()
            self.groups.close()

    def _end(self, reason: str) -> bool:
        """Return False where the attempt was over already."""
        with self._turn:
            if self._over.is_set():
                return False
            self._reason, self._formed = reason, not reason
            self._over.set()
            return True


R = TypeVar("R")

UNWANTED = "it is not wanted any more"
LENGTH_BYTES = 8
SHORT_BYTES = 1000  # which all members gather in one operation
END_S = 1.0  # for what is broken to end, when the process does
JOIN_S = 0.05


class GroupRing:
    """`edl.collectives.ring_port.Ring` on process groups."""

    prepares = True
    pairs_by_name = False

    def __init__(self, gpu: Callable[[], Gpu | None] = lambda: None, limb: int = 0) -> None:
        """`gpu`: where the gradients of this process lie, if all of them do; asked when a ring forms. `limb`: number of
        this process in its worker; those of all workers with this number are a ring.
        """
        prepare_groups()
        self._gpu = gpu
        self._mesh = mesh_of(limb)
        self._turn = threading.Lock()
        self._standing: ProcessGroups | None = None
        self._prepared: ProcessGroups | None = None
        self._released = 0  # up to this generation, no ring that is prepared will be adopted
        self._attempts: list[GroupForming] = []
        self._begun: list[GroupForming] = []  # whose threads may live: the rings that are there, and those that end
        self._words = ByteCollectives(_Tensors(self))
        self._optimizers = 0
        self.on_trial = never
        self.size = 0  # of the ring; 0 outside any. An attribute, because the hot path reads it
        self._inherited = False  # by a child that the script has forked
        ownership.at_exit(self._end)
        ownership.in_children(self._be_inherited)

    # ----------------------------------------------------------------------------------------- in and out of rings

    @property
    def place(self) -> Place | None:
        return None if self._standing is None else self._standing.place

    def enter(self, place: Place, timeout_s: float) -> None:
        self.release(place.generation)
        self.leave()
        self._form(GroupForming(self._groups(place, timeout_s), timeout_s), self._sit)

    def prepare(self, place: Place, timeout_s: float, *, all_prepare: bool) -> None:
        with self._turn:
            released = self._released
        if place.generation <= released:
            raise RingBroken("the ring did not form: it was given up before")
        self._form(GroupForming(self._groups(place, timeout_s), timeout_s, all_prepare=all_prepare), self._keep)

    def adopt(self, generation: int) -> None:
        with self._turn:
            prepared = self._prepared
            if prepared is not None and prepared.place.generation != generation:
                prepared = None
        if prepared is None or not prepared.stands():
            raise RingBroken(f"ring {generation} was not prepared, or has failed since")
        with self._turn:
            before, self._prepared = self._standing, None
            self._sit(prepared)
        self._let_go(before)

    def exchange_prepared(self, generation: int, number: int) -> list[int]:
        """Exchange a number, of up to 64 bits, with all members of a ring that was prepared, before any sits in it; on
        the thread that has prepared it. Returns theirs, by rank. Raises RingBroken.
        """
        with self._turn:
            prepared = self._prepared
        if prepared is None or prepared.place.generation != generation:
            raise RingBroken(f"ring {generation} was released")
        if prepared.place.size == 1:
            return [number]
        rows = prepared.of_all(number.to_bytes(LENGTH_BYTES, "little"))
        return [int.from_bytes(row, "little") for row in rows]

    def release(self, generation: int) -> None:
        with self._turn:
            self._released = max(self._released, generation)
            released = self._prepared if _is_of(self._prepared, range(generation + 1)) else None
            if released is not None:
                self._prepared = None
            forming = [attempt for attempt in self._attempts if attempt.generation <= generation]
        for attempt in forming:
            attempt.give_up(UNWANTED)
        self._let_go(released, UNWANTED)

    def leave(self) -> None:
        before, self._standing, self.size = self._standing, None, 0
        self._let_go(before)

    def pulse(self) -> Pulse | None:
        groups = self._standing
        return None if groups is None else groups.pulse()

    def awaits(self) -> str:
        groups = self._standing
        return "" if groups is None else groups.awaits()

    def abort(self, given_up: range | None = None) -> None:
        with self._turn:
            rings = [self._standing, None if given_up is None else self._prepared]  # nothing is in flight in that one
            attempts = [one for one in self._attempts if given_up is None or one.generation in given_up]
        for attempt in attempts:
            attempt.give_up()
        for ring in rings:
            if ring is not None and _is_of(ring, given_up) and ring.place.size > 1:
                ring.give_up("it was aborted")

    def _groups(self, place: Place, timeout_s: float) -> ProcessGroups:
        return ProcessGroups(place, timeout_s, self._gpu(), self._mesh)

    def _form(self, attempt: GroupForming, keep: Callable[[ProcessGroups], None]) -> None:
        with self._turn:
            self._attempts.append(attempt)
        formed: ProcessGroups | None = None
        try:
            formed = attempt.wait()
        finally:
            with self._turn:
                self._attempts.remove(attempt)
                self._note(attempt)
                if formed is not None and not attempt.given_up:
                    keep(formed)
                else:  # also where Ctrl-C ended the waiting: its thread is to wait for no peer
                    attempt.left.set()
        if attempt.given_up:  # a moment after it had formed
            self._let_go(formed, attempt.given_up)
            raise RingBroken(f"the ring did not form: {attempt.given_up}")

    def _sit(self, groups: ProcessGroups) -> None:
        self._standing, self.size = groups, groups.place.size
        tell_scripts(groups.place)

    def _keep(self, groups: ProcessGroups) -> None:
        before, self._prepared = self._prepared, groups
        self._let_go(before, UNWANTED)

    def _let_go(self, groups: ProcessGroups | None, reason: str = "") -> None:
        """Let the thread that formed the groups end them. With a `reason`: not one member needs them."""
        if groups is None or groups.place.size == 1:
            return
        if reason:
            groups.give_up(reason)
        for attempt in self._begun:
            if attempt.groups is groups:
                attempt.left.set()

    def _note(self, attempt: GroupForming) -> None:
        self._begun = [*(one for one in self._begun if one.thread.is_alive()), attempt]

    def _be_inherited(self) -> None:
        """Never free the groups in a forked child: gloo would take down its parent's connections."""
        self._standing, self.size, self._inherited = None, 0, True
        self._begun.extend(self._attempts)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))

    def _end(self) -> None:
        """End with the process. A member that still needs a result of ours has it then, or we have
        waited long enough.
        """
        self.leave()
        self.abort()
        self.release(sys.maxsize)
        began = time.monotonic()
        for attempt in self._begun:
            patience_s = END_S if attempt.groups.broken else CLOSE_TIMEOUT_S
            while attempt.thread.is_alive() and time.monotonic() - began < patience_s:
                attempt.thread.join(JOIN_S)

    # ----------------------------------------------------------------------------------------- bytes and numbers

    def broadcast(self, payload: bytes | None, root: int) -> bytes:
        with self._failing():
            return self._words.broadcast(self.groups.place, payload, root)

    def largest(self, values: Sequence[int]) -> list[int]:
        with self._failing():
            return self._words.largest(self.groups.place, values)

    def same(self, value: int) -> Callable[[], bool]:
        with self._failing():
            answer = self._words.same(self.groups.place, value)
        return self._waiting(answer)

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Turn an error of a ring that is on trial into RingFault."""
        try:
            yield
        except Exception as error:
            if not is_fault(self, error):
                raise
            fault = RingFault.of(error)
            self.is_failure(fault)
            raise fault from error

    def _waiting(self, wait: Callable[[], R]) -> Callable[[], R]:
        def waited() -> R:
            with self._failing():
                return wait()

        return waited

    @property
    def groups(self) -> ProcessGroups:
        """Return the groups of this ring. Raises RingBroken outside any."""
        if self._inherited:
            raise UsageError(f"edl: {ownership.FORKED}")
        if self._standing is None:
            raise RingBroken("this process is in no ring")
        return self._standing

    def settled(self) -> ProcessGroups:
        """Return the groups of this ring, once the script's own collectives have begun: an operation of edl's comes
        after them on all members. Raises RingBroken.
        """
        groups = self.groups
        groups.announcing.settle()
        return groups

    # ------------------------------------------------------------------------------------------------- tensors

    @property
    def overlaps(self) -> bool:
        """Tell whether gradients of a pass of backward may be on their way before its end: with several optimizers,
        workers might send theirs in different orders.
        """
        return self._optimizers == 1

    def averaging(self) -> Buckets:
        self._optimizers += 1
        return Buckets(self)

    def sum_begun(self, tensor: torch.Tensor, name: str) -> Callable[[], object]:  # noqa: ARG002 - by their order
        groups = self.settled()
        return self._waiting(groups.sum_begun(tensor))

    def mean(self, tensor: torch.Tensor, name: str) -> torch.Tensor:  # noqa: ARG002 - they pair up by their order
        groups = self.settled()
        with self._failing():
            found = tensor / groups.place.size
            if groups.place.size > 1:
                groups.wait(groups.begun(groups.rest.allreduce([as_real(found)])))
        return found

    def gathered(self, mine: bytes, name: str) -> list[bytes]:
        groups = self.settled()
        if groups.place.size == 1:
            return [mine]
        with self._failing():
            heads = groups.of_all(len(mine).to_bytes(LENGTH_BYTES, "little") + mine[:SHORT_BYTES], name)
            lengths = [int.from_bytes(head[:LENGTH_BYTES], "little") for head in heads]
            if max(lengths) > SHORT_BYTES:
                return groups.of_all(mine, name, max(lengths))
        return [head[LENGTH_BYTES:] for head in heads]

    def broadcast_begun(self, contents: torch.Tensor, root: int, name: str) -> Callable[[], None]:  # noqa: ARG002
        groups = self.settled()
        if groups.place.size == 1:
            return lambda: None
        with self._failing():
            work = groups.begun(groups.rest.broadcast([contents], rooted(root)))
        return self._waiting(lambda: groups.wait(work))

    def is_failure(self, error: BaseException) -> bool:
        failed = isinstance(error, RingBroken)
        if failed and self._standing is not None and not self._standing.broken:
            self._standing.failed(error)
        return failed


class _Tensors:
    """`edl.collectives.byte_collectives.Bytes` with torch's tensors."""

    def __init__(self, ring: GroupRing) -> None:
        self._ring = ring

    def broadcast(self, payload: bytes, root: int, name: str) -> bytes:
        tensor = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        groups = self._ring.settled()
        groups.wait(groups.begun(groups.rest.broadcast([tensor], rooted(root))), spoken(name))
        return tensor.numpy().tobytes()

    def largest(self, values: Sequence[int], name: str) -> list[int]:
        return self.largest_begun(values, name)()

    def largest_begun(self, values: Sequence[int], name: str) -> Callable[[], list[int]]:
        tensor = torch.tensor(values, dtype=torch.int64)
        groups = self._ring.settled()
        options = AllreduceOptions()
        options.reduceOp = ReduceOp(ReduceOp.MAX)
        work = groups.begun(groups.rest.allreduce([tensor], options))

        def wait() -> list[int]:
            groups.wait(work, spoken(name))
            found: list[int] = tensor.tolist()
            return found

        return wait


def _is_of(groups: ProcessGroups | None, generations: range | None) -> bool:
    return groups is not None and (generations is None or groups.place.generation in generations)
