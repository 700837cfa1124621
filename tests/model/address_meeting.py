"""Let the members of one ring find each other, without a job: the real part of their daemons, in one event loop.

For tests and benchmarks of the ring alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import msgspec

from edl.core.switch.address_exchange import partners
from edl.daemon.address_book import AddressBook
from edl.protocol import leader_messages
from edl.protocol.assignment import Assignment, Orders, Peer, Place, Verdict
from edl.transport.call_errors import Reason, Refusals, Refused
from edl.transport.memory_transport import MemoryListener, MemoryNetwork
from edl.transport.service import Call

JOB, SECRET = "gathering", b"a secret of tests"
HOLD_S = 5.0


class Gathering:
    """Daemons of one ring, on the loop where they are opened."""

    def __init__(self, names: Sequence[str], generation: int = 1, hold_s: float = HOLD_S) -> None:
        self._names = tuple(names)
        self._generation = generation
        self._hold_s = hold_s
        self.network = MemoryNetwork()
        self.refusals = Refusals()
        self.daemons: list[AddressBook] = []
        self._servers: list[MemoryListener] = []
        self.addresses: list[str] = []

    async def open(self) -> list[Place]:
        for name in self._names:
            await self._start(name)
        return [self.follow(rank) for rank in range(len(self._names))]

    async def stop(self) -> None:
        await asyncio.gather(*(daemon.stop() for daemon in self.daemons))

    def follow(self, rank: int, generation: int | None = None) -> Place:
        """A daemon hears the orders of a ring of all."""
        size = len(self._names)
        place = Place(generation or self._generation, rank, size, self._names[rank])
        peers = tuple(Peer(peer, self.addresses[peer]) for peer in partners(rank, size))
        return msgspec.structs.replace(
            place, rendezvous=self.daemons[rank].follow(orders(Assignment(place, None, 0, peers)))
        )

    async def replace(self, rank: int) -> None:
        """Replace a daemon by one at another address, for the same worker."""
        await self._servers[rank].stop()
        await self.daemons[rank].stop()
        await self._start(self._names[rank], rank)

    @property
    def awaited(self) -> list[frozenset[int]]:
        """Return by rank whose addresses a trainer has asked for, and waits for."""
        return [daemon.awaited for daemon in self.daemons]

    async def _start(self, name: str, rank: int | None = None) -> None:
        connect = partial(self.network.client, SECRET, JOB, name)
        daemon = AddressBook(connect, self.refusals, self._hold_s, self._hold_s)

        async def answer(call: Call) -> leader_messages.Reply:
            if not isinstance(call.body, leader_messages.AskAddresses):
                raise Refused(Reason.TERM)
            return await daemon.answer(call.body, call.sender)

        asking = (leader_messages.AskAddresses,)
        server = self.network.server(
            SECRET, JOB, answer, request_types=leader_messages.Request, refusals=self.refusals, termless=asking
        )
        address = f"{name}:{await server.start(name)}"
        place = slice(len(self.daemons), None) if rank is None else slice(rank, rank + 1)
        self.daemons[place], self._servers[place], self.addresses[place] = [daemon], [server], [address]


def orders(assignment: Assignment | None, version: int = 1) -> Orders:
    return Orders(
        term=1,
        version=version,
        verdict=Verdict.STAY,
        reason="",
        leave_after_step=0,
        wanted=0,
        present=1,
        boot_alone=False,
        assignment=assignment,
        shares=(),
    )
