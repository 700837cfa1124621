"""torch's process groups of one ring: formed, used, cut and closed.

Two groups, of the same members at the same addresses. Operations of a group pair up by the order in which its members
begin them. So gradients have one of their own: a worker that averages them in `step()` does so after the script's own
collectives, one that does in `backward()` before them.

gloo connects all pairs while a group is made, and its first operation shows that all do listen. Then no step waits for
a connection, nor for a member that froze meanwhile.

Where each member has a GPU of its own, NCCL sums up the gradients that lie there (`edl.torch.nccl_sums`).

Owns: the groups, and which connections are theirs. Does not own: the ring that a process sits in
(`edl.torch.torch_ring`), nor what goes through it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import ProcessGroupGloo, ReduceOp
from torch.distributed.distributed_c10d import AllreduceOptions, Store

from edl.collectives.library_guard import plain
from edl.collectives.rendezvous import RendezvousClient
from edl.collectives.rendezvous_board import TORCH
from edl.collectives.ring_port import Pulse
from edl.collectives.sockets import Connections
from edl.collectives.torch_addresses import listening
from edl.errors import RingBroken
from edl.protocol.assignment import Place
from edl.protocol.leader_messages import GRADIENTS
from edl.torch.announcing import ROUND, Announcing
from edl.torch.nccl_sums import NO_GPU, POLL_S, Gpu, NcclSums, each_has_its_own
from edl.torch.tensor_ring import as_real

# The stores in which groups look for each other are edl's own, so that none of torch's has to listen. A group's
# constructor writes where its rank listens, under its rank, and reads what the others have written. Nothing else is
# asked of a store.


LENGTH_BYTES = 4


class _RankStore(Store):
    """The store of a group that is being formed. It is called on the thread that forms the group."""

    def set(self, key: str, value: Any) -> None:
        """Raises RingBroken."""
        self._write(_rank(key), value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        """Raises RingBroken."""
        return self._read(_rank(key))

    def check(self, keys: list[str]) -> bool:
        raise NotImplementedError("no group of torch's has asked for that")

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Return at once: `get` waits until a key is there, so that each is asked for once."""

    def _write(self, rank: int, row: bytes) -> None:
        raise NotImplementedError

    def _read(self, rank: int) -> bytes:
        raise NotImplementedError


class DaemonStore(_RankStore):
    """Pass rows on by the members' daemons."""

    def __init__(self, asking: RendezvousClient, own_rank: int, heard: Callable[[int, bytes], None]) -> None:
        """`heard` is told each row, also our own, before anything comes of it."""
        super().__init__()
        self._asking = asking
        self._own_rank = own_rank
        self._heard = heard
        self._own = b""

    def _write(self, rank: int, row: bytes) -> None:
        self._own = row
        self._heard(rank, row)
        self._asking.write(rank, row)

    def _read(self, rank: int) -> bytes:
        row = self._own if rank == self._own_rank else self._asking.read(rank)
        self._heard(rank, row)
        return row


class PeerStore(_RankStore):
    """Pass rows on by a ring that the members have already. `beside`: what each member has said besides, by rank."""

    def __init__(self, of_all: Callable[[bytes], list[bytes]], says: bytes) -> None:
        """`of_all` gives each member's bytes, by rank. `says`: what goes along with ours."""
        super().__init__()
        self._of_all = of_all
        self._says = says
        self._rows: list[bytes] = []
        self.beside: list[bytes] = []

    def _write(self, rank: int, row: bytes) -> None:  # noqa: ARG002 - what it gives is by rank
        found = self._of_all(len(row).to_bytes(LENGTH_BYTES, "little") + row + self._says)
        ends = [LENGTH_BYTES + int.from_bytes(one[:LENGTH_BYTES], "little") for one in found]
        self._rows = [one[LENGTH_BYTES:end] for one, end in zip(found, ends, strict=True)]
        self.beside = [one[end:] for one, end in zip(found, ends, strict=True)]

    def _read(self, rank: int) -> bytes:
        return self._rows[rank]


def _rank(key: str) -> int:
    """A key has gloo's folder in front of it."""
    return int(key.rpartition("/")[2])


THREADS = 2  # of a group: so many operations are under way at once
BACKSTOP = 2  # gloo's own time-out is so many times ours, which is the one that counts (`edl.trainer.wait_bounds`)
OTHER = "a collective called by name"
LATER_S = 1.0  # gloo's time-out, which names no reason, comes so long after the attempt's own
ROW_BYTES = 1024  # of what a member writes down for the second group, besides 8 for each member
CLOSE_TIMEOUT_S = 10.0  # for the others to read to the end; those who live do within milliseconds
CLOSED_S = 0.01  # how often that is looked at
BRIEFLY = timedelta(milliseconds=20)  # most operations take less
LOOK_S = 0.25  # how often connections are looked at while one takes longer
ROUND_S = 0.01  # from one round to the next, until all members have NCCL's group


class ProcessGroups:
    """Process groups of one ring; a ring of one member has none. Any thread may call `give_up`."""

    def __init__(self, place: Place, timeout_s: float, gpu: Gpu | None = None, mesh: str = TORCH) -> None:
        """`gpu`: where this member's gradients lie, if all of them do. `mesh`: in which members find each other."""
        self.place = place
        self.broken = ""  # why
        self.gradients: Any = None
        self.rest: Any = None
        self.announcing = Announcing(self, place.rank, place.size)
        self._timeout_s = timeout_s
        self._standing = 0  # connections, once all are there
        self._asking = None if place.size == 1 else RendezvousClient(place.rendezvous, mesh, timeout_s)
        self._turn = threading.Lock()
        self._connections = Connections()
        self._stores: list[Store] = []  # torch keeps only its half of each
        self._under_way: set[Any] = set()  # operations that were not waited for yet, or in vain
        self._gpu = gpu
        self._sums: NcclSums | None = None  # where each member has a GPU of its own
        self._waiting: dict[threading.Event, str] = {}  # of those who wait for long, and what for
        self._waits = 0  # times that one began

    def form(self) -> None:
        """Raises RingBroken."""
        if self._asking is None:
            return
        with self.failing():
            options = self._options()
            self.rest = self._group(DaemonStore(self._asking, self.place.rank, self._hear), options)
            peers = PeerStore(self.of_all, NO_GPU if self._gpu is None else self._gpu.name())
            self.gradients = self._group(peers, options)
            self.wait(self.begun(self.gradients.allreduce([torch.zeros(1)])))
            if self._gpu is not None and each_has_its_own(peers.beside):
                self._begin_sums(self._gpu)
            for group in (self.rest, self.gradients):
                group._set_default_timeout(timedelta(seconds=BACKSTOP * self._timeout_s))
            self._connections.settle()  # all members are there
            self._standing = 2 * (self.place.size - 1)
            self._asking.finish(self.place.rank)

    def give_up(self, reason: str) -> None:
        """Make all that members wait for in this ring fail, from now on."""
        with self._turn:
            self.broken = self.broken or reason
            waiting = list(self._waiting)
        for news in waiting:
            news.set()
        if self._asking is not None:
            self._asking.give_up(reason)
        self._connections.cut()  # gloo's own `abort()` frees no thread (torch 2.15)
        if self._sums is not None:
            self._sums.give_up()

    def close(self) -> None:
        """Raises nothing.

        Of a healthy ring the others may still need what we have sent. So they are told that nothing follows it, and
        close their ends once they have read that; a member that begins another operation with us fails at once.

        Of a broken one it is waited here, and not in gloo, for what gloo has forgotten: a thread that is in gloo when
        the interpreter ends takes the process with it.
        """
        if not self.broken:
            self._connections.end()
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        while not self.broken and self._connections.living() and time.monotonic() < deadline:
            time.sleep(CLOSED_S)
        self._connections.cut()  # a result that the script holds, or a child of ours, would keep them open
        if self._sums is not None:  # all members are through with it: none ends its connections before
            self._sums.close()
        while not all(work.is_completed() for work in self._under_way):
            time.sleep(LOOK_S)
        self._under_way.clear()
        self.gradients = self.rest = None

    def of_all(self, mine: bytes, what: str = OTHER, room: int = 0) -> list[bytes]:
        """Return each member's bytes, by rank: few, or up to `room`, the same on all. Raises RingBroken."""
        work, told = self.of_all_begun(mine, self.rest, room)
        self.wait(work, what)
        return told()

    def of_all_begun(self, mine: bytes, group: Any, room: int = 0) -> tuple[Any, Callable[[], list[bytes]]]:
        """Begin `of_all` in a group. Returns the operation, and what gives all bytes once that is through."""
        size = self.place.size
        room = room + 8 if room else ROW_BYTES + 8 * size
        if len(mine) > room - 8:
            raise ValueError(f"{len(mine)} bytes are more than a member has room for")
        own = torch.zeros(room, dtype=torch.uint8)
        own[: 8 + len(mine)] = torch.frombuffer(bytearray(len(mine).to_bytes(8, "little") + mine), dtype=torch.uint8)
        rows = [torch.empty(room, dtype=torch.uint8) for _ in range(size)]
        work = self.begun(group.allgather([rows], [own]))

        def told() -> list[bytes]:
            found = [row.numpy().tobytes() for row in rows]
            return [row[8 : 8 + int.from_bytes(row[:8], "little")] for row in found]

        return work, told

    def stands(self) -> bool:
        """Tell whether, as far as is known here, no member has left the ring or given it up yet."""
        return not self.broken and self._connections.living() >= self._standing

    def pulse(self) -> Pulse | None:
        """Tell from any thread what has moved, where a thread waits for long; None in a broken ring."""
        with self._turn:
            if self.broken:
                return None
            waiting, waits = sum(what != ROUND for what in self._waiting.values()), self._waits
        # Rounds come and go while one member polls and another one waits for something else: that is no movement.
        told = Pulse(waiting, waits, None, self._connections.bytes() if waiting else 0)
        asking = self.announcing
        return told._replace(waiting=waiting + asking.awaits(), begun=waits + asking.matches)

    def awaits(self) -> str:
        """Tell from any thread what is waited for; nothing where no thread waits for long."""
        with self._turn:
            waiting = set(self._waiting.values())
        if ROUND in waiting or self.announcing.awaits():
            waiting = waiting - {ROUND} | {self.announcing.awaited() or OTHER}
        return GRADIENTS if GRADIENTS in waiting else min(waiting, default="")

    def begun(self, work: Any) -> Any:
        self._under_way.add(work)
        return work

    def wait(self, work: Any, what: str = OTHER) -> None:
        """Wait until an operation is through. Raises RingBroken."""
        try:
            work.wait(BRIEFLY)
        except RuntimeError:  # it has failed, or takes longer
            if not (work.is_completed() or self._is_through(work, what)):
                raise self._broken() from None
            with self.failing():
                work.wait()
        self._under_way.discard(work)

    def await_sums(self) -> None:
        """Wait for a limited time until it is known whether all members have NCCL's group: none trains here yet. Raises
        RingBroken.
        """
        for _ in range(int(self._timeout_s / 2 / ROUND_S)):  # as many on all
            if self._sums is None or not self._sums.open:
                break
            self.look_at_sums()
            time.sleep(ROUND_S)

    def look_at_sums(self) -> None:
        """Exchange one round about NCCL's group before gradients are begun, unless its standing is known. Raises
        RingBroken.
        """
        sums = self._sums
        if sums is None or not sums.open:
            return
        told = torch.frombuffer(bytearray(sums.says()), dtype=torch.uint8)
        options = AllreduceOptions()
        options.reduceOp = ReduceOp(ReduceOp.MAX)
        self.wait(self.begun(self.gradients.allreduce([told], options)))
        sums.hear(told.numpy().tobytes())

    def _begin_sums(self, gpu: Gpu) -> None:
        with self._turn:
            self._sums, broken = NcclSums(gpu, self.place, self._timeout_s), self.broken
        if broken:
            self._sums.give_up()

    def sum_begun(self, tensor: torch.Tensor) -> Callable[[], object]:
        """Begin to add up all members' gradients, in place. The returned function waits for the sum, but of a tensor on
        a GPU only the GPU may: then `settle` is to be called before any of it is used. All raise RingBroken.
        """
        if self._sums is not None and self._sums.takes(tensor):
            with self.failing():
                return self._sums.begin(tensor)
        work = self.begun(self.gradients.allreduce([as_real(tensor)]))
        return lambda: self.wait(work, GRADIENTS)

    def settle(self) -> None:
        """Wait until operations on a GPU are through there, with all that was to follow them. Raises RingBroken."""
        if self._sums is not None and self._sums.busy:
            with self.failing():
                self._watch(self._sums.through())
            self._sums.settled()

    def _watch(self, through: Callable[[], bool]) -> None:
        """Wait until `through()` holds. A member that ends its connections was through with all of the ring, or is
        dead: if it is dead, this member cannot get through, and has not a while later.
        """
        looked, stood = time.monotonic(), True
        with self._waited_for(GRADIENTS):
            while not through():
                if self.broken:
                    raise self._broken()
                time.sleep(POLL_S)
                if (now := time.monotonic()) - looked > LOOK_S:
                    if not (stood or self.stands()):
                        self.give_up("a connection was closed by a peer")
                    looked, stood = now, self.stands()
        if self.broken:  # what was freed is no sum
            raise self._broken()

    @contextlib.contextmanager
    def _waited_for(self, what: str) -> Iterator[threading.Event]:
        """Note that this thread waits for long. Yields an event, which is set when the ring is given up."""
        news = threading.Event()
        with self._turn:
            self._waiting[news] = what
            self._waits += what != ROUND
        try:
            yield news
        finally:
            with self._turn:
                del self._waiting[news]

    def _is_through(self, work: Any, what: str) -> bool:
        """False: the ring is broken. The operation may be left alone then, until gloo's own time-out: gloo forgets who
        waits for a message in whose middle a connection ends (torch 2.13; gloo/transport/tcp/pair.cc).
        """
        through = threading.Event()
        with self._waited_for(what) as news:

            def ended(_: Any) -> None:
                through.set()
                news.set()

            work.get_future().then(ended)
            while not (self.broken or news.wait(LOOK_S)):
                if not self.stands():
                    self.give_up("a connection was closed by a peer")
        return through.is_set()

    def failed(self, error: BaseException) -> RingBroken:
        """Return what to raise for `error`; a member that waits for this one learns of it at once."""
        self.give_up(plain(str(error)).partition("\n")[0].partition(". ")[0])
        return self._broken()

    def _broken(self) -> RingBroken:
        return RingBroken(f"a collective of generation {self.place.generation} failed: {self.broken}")

    @contextlib.contextmanager
    def failing(self) -> Iterator[None]:
        """Turn what torch raises inside into RingBroken."""
        try:
            yield
        except RingBroken:
            raise
        except RuntimeError as error:
            raise self.failed(error) from error

    def _hear(self, rank: int, row: bytes) -> None:
        """Note where a member listens. Raises RingBroken."""
        try:
            found = listening(row)
        except ValueError as error:
            raise RingBroken(f"rank {rank} listens where torch here does not know of: {error}") from error
        self._connections.know(found, own=rank == self.place.rank)

    def _group(self, store: Store, options: Any) -> Any:
        self._stores.append(store)
        return ProcessGroupGloo(store, self.place.rank, self.place.size, options)

    def _options(self) -> Any:
        options: Any = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [ProcessGroupGloo.create_device(hostname=self.place.address, lazy_init=False)]
        options._timeout = timedelta(seconds=self._timeout_s + LATER_S)
        options._threads = THREADS
        return options
