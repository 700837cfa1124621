"""Simulated members of `benchmarks/rendezvous.py`: real daemons' code, and trainers that only have addresses.

Owns: one process, with many members or with the leader and one member. Each has its own real `LeaderSession`,
`AddressBook`, gRPC server and connections. Not real: Horovod, the HTTP between a trainer and its own daemon, and
ZooKeeper sessions, of which the members of one process share one.
"""

from __future__ import annotations

import asyncio
import os
import resource
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from benchmarks.harness import lines, tell
from benchmarks.ledger_leader import ADDRESS, Seat, SetUp
from edl.coordination import zookeeper
from edl.core.job.lead_times import LeadTimes
from edl.daemon.address_book import AddressBook
from edl.daemon.daemon import collect_regularly, collect_seldom
from edl.daemon.leader_session import Candidacy, LeaderSession
from edl.daemon.trainer_view import TrainerView
from edl.protocol import leader_messages, node_paths
from edl.protocol.assignment import Orders, Place
from edl.protocol.record import Identity
from edl.protocol.trainer_messages import TrainerStatus
from edl.transport.call_errors import Reason, Refusals, Refused
from edl.transport.rpc import Client, Server
from edl.transport.service import Call
from edl.transport.shared_page import SharedPage

MESHES = ("global", "global_process_set_hash_1")
ADDRESS_BYTES = 8  # that travel of one that gloo writes down
TOGETHER = 50  # register at a time
FILES = 65536


class Meter:
    """What went through one daemon's hands, sealed."""

    def __init__(self) -> None:
        self.calls = self.bytes = 0
        self._began = 0.0

    def begin(self) -> None:
        self.calls, self.bytes, self._began = 0, 0, time.process_time()

    def count(self, *wires: bytes) -> None:
        self.calls += 1
        self.bytes += sum(map(len, wires))

    def report(self) -> dict[str, float]:
        return {"calls": self.calls, "bytes": self.bytes, "cpu_s": time.process_time() - self._began}


class MeteredServer(Server):
    """A daemon's, with a meter."""

    meter: Meter | None = None

    async def answer(self, wire: bytes) -> bytes:
        answer = await super().answer(wire)
        if self.meter is not None:
            self.meter.count(wire, answer)
        return answer


class Metered(Client):
    """A daemon's call to another, with a meter."""

    def __init__(self, meter: Meter, secret: bytes, job: str, sender: str, address: str) -> None:
        super().__init__(secret, job, sender, address)
        opened, speaker = self._speaker.open, self._speaker

        def count(wire: bytes, request_wire: bytes, reply_type: Any) -> Any:
            meter.count(request_wire, wire)
            return opened(wire, request_wire, reply_type)

        speaker.open = count  # type: ignore[method-assign]


class Member:
    """One worker's daemon, and a trainer that has an address for each other member and wants one of each."""

    def __init__(self, number: int, about: SetUp, meter: Meter | None = None) -> None:
        self.id = f"w{number:08x}"
        self.knows_all_of = 0  # the newest generation of whose members it has all addresses
        self._about = about
        self._meter = meter
        self._number = number
        self._secret = about.secret.encode()
        self._observer = TrainerView(SharedPage.unshared())
        hold_s = LeadTimes.of(about.session_timeout_s).hold_s
        self.introductions = AddressBook(self._connect, Refusals(), hold_s, about.session_timeout_s / 2)
        self._place: Place | None = None
        self._unknown: set[int] = set()
        self._arrived: list[tuple[int, Mapping[int, bytes]]] = []  # with the rank that we had then
        self._server: Server | None = None

    async def serve(self) -> int:
        """Returns the port. The leader's own member is served by the leader."""
        asking = (leader_messages.AskAddresses,)
        self._server = Server(
            self._secret,
            self._about.job,
            self.answer,
            request_types=leader_messages.Request,
            refusals=Refusals(),
            termless=asking,
        )
        return await self._server.start(ADDRESS)

    def join(self, store: zookeeper.ZookeeperStore, port: int) -> asyncio.Task[None]:
        process = 10_000 + self._number
        identity = Identity(self.id, f"host-{self._number // 8:03d}", ADDRESS, process, process, port=port)
        register = leader_messages.Register(identity, self._about.workers, 1, 0)
        about = Candidacy(self._about.job, self._secret, register, self._about.session_timeout_s)
        self._membership = LeaderSession(about, store, self._observer, self._hear)
        return asyncio.create_task(self._membership.run(), name=self.id)

    async def answer(self, call: Call) -> leader_messages.Reply:
        if not isinstance(call.body, leader_messages.AskAddresses):
            raise Refused(Reason.TERM)
        return await self.introductions.answer(call.body, call.sender)

    def sit(self) -> None:
        """All know all: the ring stands."""
        assert self._place is not None
        self.introductions.end(self._place.generation)
        generation = self._place.generation
        self._observer.hear(
            TrainerStatus(phase=leader_messages.Phase.TRAINING, generation=generation, began=0, leases_of=generation)
        )
        self._membership.stir()

    def fail(self) -> None:
        """The ring breaks."""
        self._observer.hear(
            TrainerStatus(
                phase=leader_messages.Phase.BROKEN,
                generation=self._observer.status.generation,
                reason="for a benchmark",
            )
        )
        self._membership.stir()

    def check(self) -> None:
        """Each address was the right one. Looked at last: a trainer does not, and this one shares its cores."""
        for rank, addresses in self._arrived:
            assert all(address == parcel(sender, rank) for sender, address in addresses.items())

    def _connect(self, address: str) -> Client:
        if self._meter is not None:
            return Metered(self._meter, self._secret, self._about.job, self.id, address)
        return Client(self._secret, self._about.job, self.id, address)

    def _hear(self, orders: Orders) -> None:
        self.introductions.follow(orders)
        place = None if orders.assignment is None else orders.assignment.place
        if place is not None and (self._place is None or place.generation > self._place.generation):
            self._place = place
            self.introductions._open._server.deliver = self._take  # type: ignore[method-assign]
            self._build(MESHES[0])

    def _build(self, mesh: str) -> None:
        """As gloo does: it says where it listens, and asks for the others."""
        assert self._place is not None
        self._unknown = set(range(self._place.size)) - {self._place.rank}
        opened = self.introductions._open
        opened.began(mesh)
        opened.wrote(mesh, parcels(self._place.rank, self._place.size))

    def _take(self, mesh: str, addresses: Mapping[int, bytes]) -> None:
        assert self._place is not None
        self._arrived.append((self._place.rank, addresses))
        self._unknown -= addresses.keys()
        if not self._unknown and mesh == MESHES[0]:
            self._build(MESHES[1])
        elif not self._unknown:
            self.knows_all_of = self._place.generation


def parcel(sender: int, receiver: int) -> bytes:
    return (sender << 20 | receiver).to_bytes(ADDRESS_BYTES, "little")


def parcels(rank: int, size: int) -> Sequence[bytes]:
    """One for each rank. Made in one go: a trainer's are gloo's work, and in its own process."""
    row = struct.pack(f"<{size}Q", *range(rank << 20, (rank << 20) + size))
    return [row[at : at + ADDRESS_BYTES] for at in range(0, len(row), ADDRESS_BYTES)]


class Leading(Seat):
    """The leader's daemon, whose own worker is a member like any other."""

    def __init__(self, about: SetUp, store: zookeeper.ZookeeperStore, meter: Meter, member: Member) -> None:
        super().__init__(about, store)
        self._member = member
        self._server = MeteredServer(
            about.secret.encode(),
            about.job,
            self._answer,
            request_types=leader_messages.Request,
            refusals=self._refusals,
            termless=(leader_messages.AskAddresses,),
        )
        self._server.meter = meter

    @property
    def port(self) -> int:
        return int(self._server.address.rpartition(":")[2])

    async def _answer(self, call: Call) -> leader_messages.Reply:
        if isinstance(call.body, leader_messages.AskAddresses):
            return await self._member.answer(call)
        return await super()._answer(call)


class Crowd:
    """All members of this process; the leader's is alone in its own."""

    def __init__(self, about: SetUp, store: zookeeper.ZookeeperStore) -> None:
        self._about, self._store = about, store
        self._meter = Meter()
        metered = None if about.first else self._meter
        self._members = [Member(number, about, metered) for number in range(about.first, about.last)]
        self._seat: Leading | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def serve(self) -> list[int]:
        """Listens, and leads where that is ours to do. Returns the ports."""
        if self._about.first:
            os.nice(5)  # a leader does not share its cores with all other daemons
            return [await member.serve() for member in self._members]
        self._seat = Leading(self._about, self._store, self._meter, self._members[0])
        await self._seat.run()
        return [self._seat.port]

    async def join(self, ports: Sequence[int]) -> None:
        for at in range(0, len(self._members), TOGETHER):
            group = range(at, min(at + TOGETHER, len(self._members)))
            paths = [node_paths.worker(self._about.job, self._members[i].id) for i in group]
            await asyncio.gather(*(self._store.create(path, b"", ephemeral=True) for path in paths))
            self._tasks += [self._members[i].join(self._store, ports[i]) for i in group]

    async def obey(self, command: str) -> None:
        """Then tell what the meter says."""
        for task in self._tasks:
            if task.done():
                task.result()
        what, _, generation = command.partition(" ")
        match what:
            case "await":
                await until(lambda: all(member.knows_all_of >= int(generation) for member in self._members))
            case "complete":
                await until(lambda: self._recorded() >= int(generation))
            case "measure":
                self._meter.begin()
            case "sit" | "fail":
                for member in self._members:
                    getattr(member, what)()
        report = self._meter.report()
        if what == "report":
            for member in self._members:
                member.check()
        tell(what, **report)

    def _recorded(self) -> int:
        """The generation that the leader has on record."""
        assert self._seat is not None
        return self._seat.leader._machine.record.generation


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what is asked for has no event
        await asyncio.sleep(0.01)


async def main() -> int:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES, most), most))
    commands = lines(sys.stdin)
    about = msgspec.json.decode(await anext(commands), type=SetUp)
    store = await zookeeper.connect(about.coordinator(), 60.0, connect_timeout_s=30.0)
    collect_seldom()
    collecting = asyncio.ensure_future(collect_regularly())  # as a daemon does
    crowd = Crowd(about, store)
    ports = await crowd.serve()
    assert await anext(commands) == "join"
    await crowd.join(ports)
    async for command in commands:
        await crowd.obey(command)
    collecting.cancel()
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
