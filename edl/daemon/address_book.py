"""The exchange of addresses between the members of a ring: from daemon to daemon, each in touch with a few others.

A trainer tells its own daemon the addresses that it listens at, and asks it for those of the others
(`edl.collectives.rendezvous`). The daemons exchange them by the rules of `edl.core.switch.address_exchange`, in sealed
calls: one asks, and brings its parcels for the other, which answers once it can. A question names its generation: a
daemon that has finished with that generation refuses it (I10), a daemon that has not heard of it yet lets the question
wait, for a time (I12).

Owns: one daemon's part in that, from the order to form a ring until the ring stands or is given up. Does not own: which
daemon asks which, nor the messages of trainers and daemons.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from edl.collectives.rendezvous import Rendezvous
from edl.collectives.rendezvous_board import is_of_torch
from edl.core.switch.address_exchange import Exchange, ExchangeRequest
from edl.errors import PeerError
from edl.protocol.assignment import Orders, Peer, Place
from edl.protocol.leader_messages import Addresses, AskAddresses, Phase, clipped
from edl.protocol.trainer_messages import TrainerStatus
from edl.transport.call_errors import Caller, Reason, Refusals, Refused

logger = logging.getLogger("edl")

RETRY_S = 0.1

Connect = Callable[[str], Caller]


class AddressBook:
    """The address exchanges of one daemon, one ring after the other."""

    def __init__(self, connect: Connect, refusals: Refusals, hold_s: float, answer_s: float) -> None:
        """`connect` makes a caller of an address. Questions wait for `hold_s`, and their answers take `answer_s`."""
        self._connect = connect
        self._refusals = refusals
        self.hold_s = hold_s
        self.answer_s = answer_s
        self._callers: dict[str, Caller] = {}  # callers of the ring before stay: the next one has mostly the same
        self._open: Introduction | None = None
        self.failed = (0, "")  # the newest ring that cannot form, as another daemon has told, and why
        self._over = 0  # generations up to this one: their rings stand, or have failed
        self._news = asyncio.Event()
        self._closing: set[asyncio.Task[None]] = set()

    def follow(self, orders: Orders) -> str:
        """Prepare for the ring that `orders` name, if it is new. Return the address where the trainer finds the others.

        The ring is the planned one, or one that is prepared for a plan while another stands: there is one at a time.
        """
        place, peers = _next_ring(orders)
        generation = 0 if place is None else place.generation
        if self._open is not None and self._open.generation != generation:
            self.end(self._open.generation)
        if place is None or generation <= self._over:
            return ""
        if self._open is None:
            self._open = Introduction(place, self)
            self._tell()
        self._open.hear_of(peers)
        return self._open.rendezvous

    def end(self, generation: int) -> None:
        """Close rings up to this generation: they stand, or no trainer enters them any more."""
        if generation <= self._over:
            return
        self._over = generation
        if self._open is not None and self._open.generation <= generation:
            self._close(self._open.close())
            self._open = None
        self._tell()

    def give_up(self) -> None:
        """Give up the open ring, as the trainer is gone: daemons that ask for its addresses ask in vain."""
        if self._open is not None:
            self.end(self._open.generation)

    async def stop(self) -> None:
        """Close all exchanges and callers. Harmless twice."""
        self.give_up()
        await asyncio.gather(*self._closing)
        callers, self._callers = self._callers, {}
        await asyncio.gather(*(caller.close() for caller in callers.values()))

    @property
    def awaited(self) -> frozenset[int]:
        """The ranks whose addresses the trainer has asked for, and waits for."""
        return frozenset() if self._open is None else self._open.awaited

    def explained(self, status: TrainerStatus) -> TrainerStatus:
        """Add to a failure of the trainer's ring the reason that another daemon has told: Horovod knows only that it
        waits.
        """
        generation, why = self.failed
        if not generation:
            return status
        reason, (prepared, failure) = clipped(f"the ring did not form: {why}"), status.prepared
        if status.phase is Phase.BROKEN and status.generation == generation:
            status = msgspec.structs.replace(status, reason=reason)
        if failure and prepared == generation:
            status = msgspec.structs.replace(status, prepared=(prepared, reason))
        return status

    async def answer(self, asked: AskAddresses, sender: str) -> Addresses:
        """Answer the question of another worker's daemon. Raises Refused."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(asked.hold_s, self.hold_s)
        while True:
            if asked.generation <= self._over:
                raise Refused(Reason.GENERATION)
            news, parcels = self._news, self._traded(asked, sender)
            if parcels is not None:
                return Addresses(parcels)
            try:
                async with asyncio.timeout_at(deadline):
                    await news.wait()
            except TimeoutError:
                return Addresses(None)

    def caller(self, address: str) -> Caller:
        """Raise PeerError if the daemon at `address` is not asked any more."""
        if address not in self._callers:
            raise PeerError(f"the daemon at {address} is not asked any more")
        return self._callers[address]

    def keep_to(self, addresses: Collection[str]) -> None:
        """Stay connected to the daemons that the open ring asks, or the next one will, and to no others: then asking is
        quick.
        """
        for address in self._callers.keys() - set(addresses):
            self._close(self._callers.pop(address).close())
        for address in addresses:
            if address not in self._callers:
                self._callers[address] = self._connect(address)
                self._callers[address].connect()

    def _close(self, closing: Coroutine[Any, Any, None]) -> None:
        self._closing.add(task := asyncio.ensure_future(closing))
        task.add_done_callback(self._closing.discard)

    def _traded(self, asked: AskAddresses, sender: str) -> tuple[bytes, ...] | None:
        if self._open is None or self._open.generation != asked.generation:
            return None
        return self._open.trade(asked, sender)

    async def news(self) -> None:
        """Wait until there is something to look at again."""
        await self._news.wait()

    def _tell(self) -> None:
        """Wake all tasks that wait for an answer."""
        self._news.set()
        self._news = asyncio.Event()


def _next_ring(orders: Orders) -> tuple[Place | None, Sequence[Peer]]:
    """Return the place in the ring that the trainer is to form, if any, and the peers to ask for it."""
    if orders.assignment is not None:
        return orders.assignment.place, orders.assignment.peers
    return (None, ()) if orders.summons is None else (orders.summons.place, orders.summons.peers)


def through_with(status: TrainerStatus) -> int:
    """Return the generation up to which the trainer needs no more addresses."""
    # While other trainers may need them, the exchange of a prepared ring stays open.
    prepared, failure = status.prepared
    return max(status.generation, prepared if failure else 0)


class JobKeys:
    """Derive a key for each ring from the job's secret. A trainer gets no other key."""

    def __init__(self, secret: bytes, job: str) -> None:
        self._secret = hmac.digest(secret, b"edl ring " + job.encode(), "sha256")

    def of(self, generation: int) -> bytes:
        return hmac.digest(self._secret, generation.to_bytes(8, "big"), "sha256")


@dataclass(frozen=True, slots=True)
class Here:
    """The facts about this worker's host that only its daemon knows."""

    interface: str
    address: str
    rendezvous: str
    keys: JobKeys | None  # None before it is known


def located(orders: Orders, here: Here) -> Orders:
    """Complete the orders by the facts about its host that the trainer needs to form a ring."""
    if orders.assignment is not None:
        place = _located(orders.assignment.place, here)
        return msgspec.structs.replace(orders, assignment=msgspec.structs.replace(orders.assignment, place=place))
    if orders.summons is not None and orders.summons.place is not None:
        place = _located(orders.summons.place, here)
        return msgspec.structs.replace(orders, summons=msgspec.structs.replace(orders.summons, place=place))
    return orders


def _located(place: Place, here: Here) -> Place:
    return msgspec.structs.replace(
        place,
        interface=here.interface,
        address=here.address,
        rendezvous=here.rendezvous,
        key=b"" if here.keys is None else here.keys.of(place.generation),
    )


class Introduction:
    """The address exchange of one ring."""

    def __init__(self, place: Place, ours: AddressBook) -> None:
        self.generation = place.generation
        self._place = place
        self._ours = ours
        self._peers: dict[int, str] = {}
        self._meshes: dict[str, Exchange] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        refusals = ours._refusals
        self._server = Rendezvous(
            place.worker, place.rank, place.size, self, on_refused=lambda why: refusals.count(why, of="rendezvous")
        )
        self.rendezvous = self._server.open()

    def hear_of(self, peers: Sequence[Peer]) -> None:
        """Set the peers to ask: a daemon that was started anew listens at another address."""
        self._peers = {peer.rank: peer.address for peer in peers}
        self._ours.keep_to(self._peers.values())

    async def close(self) -> None:
        """Close the exchange, and free the trainer if it still asks."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.stop()

    @property
    def awaited(self) -> frozenset[int]:
        return self._server.awaited

    def trade(self, asked: AskAddresses, sender: str) -> tuple[bytes, ...] | None:
        """Take the parcels of a question, and return the answer's; None: not here yet. Raises Refused."""
        mesh = self._meshes.get(asked.mesh)
        if mesh is None and self._meshes and is_of_torch(next(iter(self._meshes))) != is_of_torch(asked.mesh):
            self._fail(_other_sort(sender, asked.mesh))
            raise Refused(Reason.RING, detail=_other_sort(self._place.worker, next(iter(self._meshes))))
        if mesh is None:
            return None
        before = mesh.stage
        try:
            arrived = mesh.receive(asked.kind, asked.part, asked.parcels)
        except ValueError as error:
            raise Refused(Reason.MALFORMED, detail=str(error)) from error
        self._deliver(asked.mesh, mesh, arrived, before)
        return mesh.gives(asked.kind, asked.part)

    # Callbacks of the rendezvous:

    def began(self, mesh: str) -> None:
        """Begin an exchange: the trainer is about to need the others' addresses."""
        exchange = self._meshes[mesh] = Exchange(self._place.rank, self._place.size)
        task = asyncio.create_task(self._run_all(mesh, exchange), name=f"addresses of ring {self.generation}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def wrote(self, mesh: str, parcels: Sequence[bytes]) -> None:
        """Take the trainer's own addresses."""
        self._meshes[mesh].begin(parcels)
        self._ours._tell()

    async def _run_all(self, mesh: str, exchange: Exchange) -> None:
        """Run all questions of an exchange, once the trainer's own addresses are known."""
        while not exchange.stage:
            await self._ours.news()
        await asyncio.gather(*(self._run(mesh, exchange, errand) for errand in exchange.errands))

    async def _run(self, mesh: str, exchange: Exchange, errand: ExchangeRequest) -> None:
        """Ask until the peer has answered, or has finished with this generation, whose ring cannot form then."""
        brought = exchange.brings(errand)
        asked = AskAddresses(self.generation, mesh, errand.kind, errand.part, brought, self._ours.hold_s)
        while True:
            try:
                parcels = await self._ask(errand.rank, asked)
                if parcels is not None:
                    self._take(mesh, exchange, errand, parcels)
                    return
            except Refused as refusal:
                if refusal.reason is Reason.GENERATION:
                    return
                if refusal.reason is Reason.RING:
                    self._fail(refusal.detail)
                    return
                await asyncio.sleep(RETRY_S)
            except PeerError:  # the peer's daemon is gone: another may come, and orders tell where
                await asyncio.sleep(RETRY_S)

    def _fail(self, reason: str) -> None:
        logger.warning("ring %d cannot form: %s", self.generation, reason)
        self._ours.failed = (self.generation, reason)
        self._server.fail(reason)

    async def _ask(self, rank: int, asked: AskAddresses) -> tuple[bytes, ...] | None:
        address = self._peers.get(rank)
        if address is None:
            raise PeerError(f"rank {rank} of generation {self.generation} is not a member any more")
        deadline_s = asked.hold_s + self._ours.answer_s
        reply = await self._ours._callers[address].call(asked, Addresses, term=0, deadline_s=deadline_s)
        return reply.parcels

    def _take(self, mesh: str, exchange: Exchange, errand: ExchangeRequest, parcels: tuple[bytes, ...]) -> None:
        before = exchange.stage
        try:
            arrived = exchange.take(errand, parcels)
        except ValueError as error:
            raise PeerError(f"rank {errand.rank}: {error}") from error
        self._deliver(mesh, exchange, arrived, before)

    def _deliver(self, mesh: str, exchange: Exchange, arrived: Mapping[int, bytes], before: int) -> None:
        if arrived:
            self._server.deliver(mesh, arrived)
        if exchange.stage > before:  # else no waiter would find more: those of a large group are many
            self._ours._tell()


def _other_sort(worker: str, mesh: str) -> str:
    sort = "torch's groups" if is_of_torch(mesh) else "Horovod"
    return f"{worker} came to the rendezvous for a ring of {sort}: say the same --ring on all workers"
