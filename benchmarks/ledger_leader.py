"""The leader of `benchmarks/ledger.py`, in a process of its own: all that a daemon has for leading, and nothing else.

Owns: the clock around a real `edl.daemon.leader_shell`. Which report made it grant, when the machine had decided, when
the record was durable and published, and when it was whose turn to hear are noted; nothing is decided here. Commands
come in as lines (the set-up first, then measure, report, turns), news go out as JSON lines.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from benchmarks.harness import lines, tell
from edl.clock import SystemClock
from edl.coordination import zookeeper
from edl.coordination.coordinator_settings import Coordinator
from edl.coordination.election import Candidate, Reign
from edl.coordination.store import Op, Write
from edl.core.job.commit import BatchDecided, Commit
from edl.core.job.leader_inputs import Command, Input, Reported
from edl.core.job.leader_machine import JobMachine
from edl.core.job.orders import OrderBook
from edl.daemon.daemon import collect_regularly, collect_seldom
from edl.daemon.leader_shell import Leader, LeaderConfig
from edl.daemon.metrics.families import Family, of_job
from edl.daemon.metrics.metrics_server import MetricsServer
from edl.host.credentials import with_secret
from edl.protocol import leader_messages, node_paths
from edl.protocol.record import Record
from edl.transport.call_errors import Reason, Refusals, Refused
from edl.transport.rpc import Server
from edl.transport.service import Call

ADDRESS = "127.0.0.1"


class SetUp(msgspec.Struct, frozen=True):
    """What a process of this benchmark is told first."""

    hosts: str  # of ZooKeeper
    job: str
    secret: str
    session_timeout_s: float
    workers: int
    first: int = 0  # number of the first worker that this process simulates, and one after the last
    last: int = 0
    steps_per_s: float = 3.0
    batch: int = 32
    total: int = 10**9

    def coordinator(self) -> Coordinator:
        return with_secret(Coordinator(self.hosts), self.secret.encode())


class Grant(msgspec.Struct):
    """One extension of all leases, on the clock that all processes of the machine share."""

    version: int  # of the record that brings it, and so of the orders
    worker: str  # whose report made it due
    step: int
    arrived: float
    decided: float
    written: float = 0.0
    published: float = 0.0


class TimedLeader(Leader):
    """A leader that notes the times of its grants."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.grants: list[Grant] = []
        self.writes = 0
        self.record_bytes = 0  # of the largest record, as it is kept
        self.largest: Record | None = None
        self.answers_s: list[float] = []  # reports, from their arrival to their answer
        self.turns: list[tuple[str, int, float]] = []  # worker, version of its orders, when it was its turn to hear
        self._woken = 0.0  # when something pressing was published
        self._arrived: dict[str, float] = {}
        self._keep_untimed = self.chronicle.keep
        self.chronicle.keep = self._keep  # type: ignore[method-assign]
        self._compose = self.chronicle._ops
        self.chronicle._ops = self._weigh  # type: ignore[method-assign]

    async def answer(self, call: Call) -> leader_messages.Reply:
        if not isinstance(call.body, leader_messages.Report):
            return await super().answer(call)
        arrived = self._arrived[call.sender] = time.monotonic()
        reply = await super().answer(call)
        self.answers_s.append(time.monotonic() - arrived)
        return reply

    async def _orders(self, worker: str, known: tuple[int, int], hold_s: float) -> leader_messages.Reply:
        came, behind = time.monotonic(), known[0] != self._reign.term or known[1] < self._pressing
        reply = await super()._orders(worker, known, hold_s)
        if reply.orders.version != known[1]:
            woken = self._woken if self._woken > came else came + min(hold_s, self.lead_times.hold_s)
            self.turns.append((worker, reply.orders.version, came if behind else woken))
        return reply

    async def _work(self, machine: JobMachine) -> None:
        handle = machine.handle

        def timed(happened: Input, now: float, *, more: bool = False) -> list[Command]:
            before = machine.ledger.covered_step if machine.ledger else 0
            commands = handle(happened, now, more=more)
            if machine.ledger is not None and machine.ledger.covered_step > before and isinstance(happened, Reported):
                arrived, step = self._arrived[happened.worker], happened.observation.step
                grant = Grant(machine.record.version, happened.worker, step, arrived, time.monotonic())
                self.grants.append(grant)
            return commands

        machine.handle = timed  # type: ignore[method-assign]
        await super()._work(machine)

    async def _keep(self, decided: BatchDecided) -> None:
        kept, record = self.chronicle.record, decided.record
        self.writes += bool(decided.told) or record.version != kept.version
        await self._keep_untimed(decided)

    def _weigh(self, commit: Commit) -> list[Op]:
        ops = self._compose(commit)
        written = max(len(op.value) for op in ops if isinstance(op, Write))
        if written > self.record_bytes:
            self.record_bytes, self.largest = written, commit.record
        return ops

    def _publish(self, book: OrderBook, *, pressing: bool) -> None:
        for grant in self._waiting():  # it has just become durable
            grant.version, grant.written = book.record.version, time.monotonic()
        super()._publish(book, pressing=pressing)
        if pressing:
            self._woken = time.monotonic()
        for grant in self._waiting():
            grant.published = time.monotonic()

    def _waiting(self) -> list[Grant]:
        return [grant for grant in self.grants[-2:] if not grant.published]


class Shown:
    """The leader's metrics, served as a daemon serves them; notes what each page takes of a processor."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self.loop_s: list[float] = []  # during which the leader does nothing else
        self.text_s: list[float] = []  # in a thread
        self._server = MetricsServer(self._read)
        self._encode, self._server._encoded = self._server._encoded, self._text

    async def start(self) -> str:
        return f"http://{ADDRESS}:{await self._server.start(ADDRESS, 0)}/metrics"

    async def stop(self) -> None:
        await self._server.stop()

    def _read(self) -> list[Family]:
        began = time.thread_time()
        status = self._leader.status()
        assert status is not None, "it reigns, and has taken over"
        found = of_job(status, time.time())
        self.loop_s.append(time.thread_time() - began)
        return found

    def _text(self, families: Sequence[Family], accepted: str) -> tuple[bytes, str]:
        began = time.thread_time()
        made = self._encode(families, accepted)
        self.text_s.append(time.thread_time() - began)
        return made


class Seat:
    """Stands for election and answers, as a daemon does."""

    def __init__(self, about: SetUp, store: zookeeper.ZookeeperStore) -> None:
        self._about, self._store = about, store
        self._refusals = Refusals()
        self._server = Server(
            about.secret.encode(),
            about.job,
            self._answer,
            request_types=leader_messages.Request,
            refusals=self._refusals,
        )
        self.leader: TimedLeader | None = None
        self._reign: asyncio.Task[None] | None = None

    async def run(self) -> None:
        port = await self._server.start(ADDRESS)
        ident = f"leader {ADDRESS}:{port}"
        self._candidate = Candidate(self._store, node_paths.root(self._about.job), ident, self._on_reign)
        self._candidate.stand()

    async def stop(self) -> None:
        if self._reign is not None:
            self._reign.cancel()
            await asyncio.gather(self._reign, return_exceptions=True)
        await self._candidate.resign()
        await self._server.stop()

    def _on_reign(self, reign: Reign | None) -> None:
        if reign is None:
            self._server.term = 0
            return
        assert self.leader is None, "deposed in the meantime: this machine is too busy for the leader's session"
        about = LeaderConfig(self._about.job, "leader", ADDRESS, self._about.session_timeout_s)
        self.leader = TimedLeader(about, self._store, reign, SystemClock(), self._refusals)
        self._reign = asyncio.ensure_future(self.leader.run())
        self._server.term = reign.term
        tell("reigning", address=self._store._settings.hosts, term=reign.term)

    async def _answer(self, call: Call) -> leader_messages.Reply:
        if self.leader is None:
            raise Refused(Reason.TERM)
        return await self.leader.answer(call)

    def refused(self) -> dict[str, int]:
        return self._refusals.snapshot()


async def main() -> int:
    commands = lines(sys.stdin)
    about = msgspec.json.decode(await anext(commands), type=SetUp)
    store = await zookeeper.connect(about.coordinator(), 30.0, connect_timeout_s=30.0)
    seat = Seat(about, store)
    collect_seldom()
    collecting = asyncio.ensure_future(collect_regularly())  # as a daemon does
    await seat.run()
    began_cpu = began = 0.0
    shown: Shown | None = None
    async for command in commands:
        assert seat.leader is not None
        if command == "measure":
            began_cpu, began = time.process_time(), time.monotonic()
            seat.leader.answers_s.clear()
            seat.leader.turns.clear()
            seat.leader.writes = 0
        elif command == "show":
            shown = Shown(seat.leader)
            tell("shown", url=await shown.start())
        elif command == "turns":
            tell("turns", turns=seat.leader.turns)
        else:
            cpu_s, wall_s = time.process_time() - began_cpu, time.monotonic() - began
            tell(
                "leader",
                cores=cpu_s / wall_s,
                seconds=wall_s,
                writes=seat.leader.writes,
                reports=len(seat.leader.answers_s),
                scrape_loop_s=[] if shown is None else shown.loop_s,
                scrape_text_s=[] if shown is None else shown.text_s,
                answers_s=seat.leader.answers_s,
                record_bytes=seat.leader.record_bytes,
                plain_bytes=len(msgspec.json.encode(seat.leader.largest)),
                refused=seat.refused(),
                grants=[json.loads(msgspec.json.encode(grant)) for grant in seat.leader.grants],
            )
    collecting.cancel()
    if shown is not None:
        await shown.stop()
    await seat.stop()  # the end of our input: no call comes any more
    await store.close()
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
