"""A job's record and its events, as one leader writes them: each change once, whatever fails in between.

Owns: what lies in the coordinator, and that a write whose answer was lost is neither taken for done nor done twice.
Does not own: what is written (`edl.core`), nor when (`edl.daemon.leader`).

Every write replaces the record, also one that only adds events, on condition that it still has the version that was
seen last. Only the leader writes (I1), so a version that moved on means: the write was carried out, all of it. One that
is late, and arrives after we have tried again, finds another version and does nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from edl import events
from edl.clock import Clock
from edl.coordination.election import Reign
from edl.coordination.store import MAX_VALUE_BYTES, Create, Node, NodeExists, Op, Store, VersionConflict, Write
from edl.core.inputs import Tell
from edl.core.job import new_record
from edl.errors import StoreUnavailable, UsageError
from edl.protocol import keeping, tree
from edl.protocol.job import Record

logger = logging.getLogger("edl")

T = TypeVar("T")

RETRY_S: Final = 0.1


class Chronicle:
    """One leader's, for one term."""

    def __init__(self, job: str, store: Store, reign: Reign, clock: Clock) -> None:
        self._job = job
        self._store = store
        self._reign = reign
        self._clock = clock
        self._version = 0  # of the node, as the last write left it
        self.record: Record | None = None  # as it stands in the coordinator; None: not known yet

    async def open(self) -> Record:
        """What the leaders before have decided; the first one finds a job that nobody has joined yet."""
        node = await patiently(lambda: self._store.read(tree.record(self._job)))
        if node is None:
            node = await patiently(self._found)
        self._version, self.record = node.version, keeping.decode(node.value)
        return self.record

    async def keep(self, record: Record, told: Sequence[Tell] = ()) -> None:
        """Until it is durable. Raises Fenced when the reign is over, UsageError when it is more than may be kept."""
        value = keeping.encode(record)
        added: list[Create] = [self._event(tell) for tell in told]
        _check_size(record, len(value), sum(len(event.value) for event in added))
        tried = False

        async def attempt() -> int:
            nonlocal tried
            if tried and (node := await self._node()).version != self._version:
                return node.version
            again, tried = tried, True
            try:
                ops: list[Op] = [Write(tree.record(self._job), value, self._version), *added]
                version, *_ = await self._store.commit(ops, fence=self._reign.fence)
            except VersionConflict:
                if not again:
                    raise
                return (await self._node()).version  # an earlier try came through after we had looked
            assert isinstance(version, int)
            return version

        self._version = await patiently(attempt)
        self.record = record

    async def _node(self) -> Node:
        node = await self._store.read(tree.record(self._job))
        if node is None:
            raise UsageError(f"somebody has deleted {tree.record(self._job)}: the job's record is lost")
        return node

    async def _found(self) -> Node:
        """The job's folders, and a record to be overwritten: later writes are all alike."""
        empty = keeping.encode(new_record(self._job, self._clock.wall()))
        for path in (tree.record(self._job), tree.events(self._job), tree.workers(self._job)):
            try:
                await self._store.create(path, empty if path == tree.record(self._job) else b"")
            except NodeExists:  # an earlier try, or a worker that came first
                continue
        return await self._node()

    def _event(self, tell: Tell) -> Create:
        return event_node(self._job, self._reign.term, self._clock.wall(), tell)


def _check_size(record: Record, record_bytes: int, events_bytes: int) -> None:
    """What the coordinator would refuse, in the job's own words."""
    if record_bytes + events_bytes > MAX_VALUE_BYTES:
        raise UsageError(
            f"the job's record of {len(record.members)} members has {record_bytes} bytes, and {events_bytes} in events "
            f"come with it; the coordinator takes {MAX_VALUE_BYTES} at once: train with fewer workers"
        )


def event_node(job: str, term: int, ts: float, tell: Tell) -> Create:
    """The node of an event; the leader's log has it, too."""
    event = events.Event(ts, job, tell.fact.kind, term, tell.generation, tell.step, tell.fact.details())
    logger.info("%s", event.to_json())
    return Create(f"{tree.events(job)}/e-", events.encode(event), sequence=True)


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Until the coordinator answers, or the reign ends by cancellation: training goes on meanwhile (I11)."""
    while True:
        try:
            return await call()
        except StoreUnavailable:
            await asyncio.sleep(RETRY_S)
