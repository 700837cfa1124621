"""A daemon's standing question for orders: the leader answers it for what presses, or when its time is up."""

from __future__ import annotations

import asyncio

from edl.clock import SystemClock
from edl.coordination.election import Candidate, Reign
from edl.coordination.memory_store import MemoryServer
from edl.daemon.leader_shell import Leader, LeaderConfig
from edl.protocol import leader_messages as say
from edl.protocol import node_paths
from edl.protocol.assignment import Orders
from edl.protocol.leader_messages import Observation, Phase
from edl.protocol.record import Identity, decode_record
from edl.transport.call_errors import Refusals
from edl.transport.service import Call

JOB, WORKERS = "j", ("w0", "w1")


async def test_a_worker_that_knows_what_presses_is_not_answered_for_what_does_not() -> None:
    """Of a ring that breaks, each void mini-batch changes the record: the next word for all is the plan."""
    store = MemoryServer().connect()
    began: asyncio.Future[Reign] = asyncio.get_running_loop().create_future()
    candidate = Candidate(
        store, node_paths.root(JOB), "w0 127.0.0.1:1", lambda reign: began.set_result(reign) if reign else None
    )
    for worker in WORKERS:
        await store.create(node_paths.worker(JOB, worker), b"", ephemeral=True)
    candidate.stand()
    leader = Leader(LeaderConfig(JOB, "w0", "127.0.0.1", 60.0), store, await began, SystemClock(), Refusals())
    reigning = asyncio.ensure_future(leader.run())

    async def orders(known: int) -> Orders:
        term = 1 if known else 0
        reply = await leader.answer(Call("w1", 1, say.Await(term, known, 30.0)))
        assert isinstance(reply, say.Ordered)
        return reply.orders

    async def report(worker: str, phase: Phase, reason: str = "") -> None:
        seen = Observation(phase=phase, generation=1, step=0, leases_of=1, reason=reason)
        await leader.answer(Call(worker, 1, say.Report(seen)))

    for worker in WORKERS:
        await leader.answer(Call(worker, 1, say.Register(Identity(worker, "h", "127.0.0.1", 1, 2), 2, 1, 0)))
    for worker in WORKERS:
        await report(worker, Phase.TRAINING)
    known = await orders(0)
    assert known.assignment is None
    await report("w0", Phase.BROKEN, "reset by peer")
    node = await store.read(node_paths.record(JOB))
    assert node is not None and decode_record(node.value).version > known.version
    told = await orders(known.version)
    assert told.assignment is not None
    assert told.assignment.place.generation == 2
    reigning.cancel()
    await asyncio.gather(reigning, return_exceptions=True)
    await candidate.resign()
    await store.close()
