"""A job's record and its events in the coordinator, as one leader writes them.

Owns: the stored nodes, and carrying out the commands of `edl.core.job.commit`. Does not own: the contents
(`edl.core.job.leader_machine`), the order of writes and answers (`edl.core.job.commit`), nor what follows when the
coordinator does not answer a write (`edl.daemon.leadership`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

from edl import events
from edl.clock import Clock
from edl.coordination.election import Reign
from edl.coordination.store import MAX_VALUE_BYTES, Create, NodeExists, Op, Store, StoredNode, VersionConflict, Write
from edl.core.job.commit import (
    BatchDecided,
    Commit,
    ForgetSecret,
    Forgotten,
    InStore,
    Outcome,
    Telling,
    Writing,
    Written,
)
from edl.core.job.leader_inputs import Tell
from edl.core.job.leader_machine import new_record
from edl.daemon import leftovers
from edl.errors import StoreUnavailable, UsageError
from edl.protocol import node_paths
from edl.protocol.record import Record, decode_record, encode_record

logger = logging.getLogger("edl")

RETRY_S: Final = 0.1

A = TypeVar("A")
T = TypeVar("T")


class RecordStore(Generic[A]):
    """The store of one leader, for one term."""

    def __init__(
        self, job: str, store: Store, reign: Reign, clock: Clock, tell: Callable[[Telling[A]], None] = lambda _: None
    ) -> None:
        """Keep the parts. `tell` is called with each answer that may be given, once its cause is durable."""
        self._job = job
        self._store = store
        self._reign = reign
        self._clock = clock
        self._tell = tell
        self._writing: Writing[A] | None = None

    @property
    def record(self) -> Record | None:
        """The record as it is in the coordinator; None: unknown yet."""
        return None if self._writing is None else self._writing.record

    async def open(self) -> Record:
        """Read the record of the leaders before; the first leader makes one of a job that no worker has joined yet."""
        node = await patiently(lambda: self._store.read(node_paths.record(self._job)))
        if node is None:
            node = await patiently(self._found)
        record = decode_record(node.value)
        self._writing = Writing(record, node.version, self._reign.term)
        return record

    async def keep(self, decided: BatchDecided[A]) -> None:
        """Make a batch durable, then give its answers.

        Raises Fenced if the term is over, StoreUnavailable if it is not known whether the batch is durable, so that the
        term has to end, and UsageError if the batch cannot be stored.
        """
        assert self._writing is not None
        due = deque(self._writing.handle(decided))
        while due:
            match due.popleft():
                case Commit() | ForgetSecret() as command:
                    due.extend(self._writing.handle(await self._outcome(command)))
                case said:
                    self._tell(said)

    async def _outcome(self, command: InStore) -> Outcome:
        match command:
            case Commit():
                return Written(await self._commit(command))
            case ForgetSecret():
                await leftovers.forget_secret(self._store, self._job)
                return Forgotten()

    async def _commit(self, commit: Commit) -> int:
        try:
            version, *_ = await self._store.commit(self._ops(commit), fence=self._reign.fence)
        except VersionConflict as error:
            raise UsageError(
                f"another program has written the record of job {self._job}, which its leader alone may write"
            ) from error
        assert isinstance(version, int)
        return version

    def _ops(self, commit: Commit) -> list[Op]:
        value = encode_record(commit.record)
        added = [events_node(self._job, self._reign.term, self._clock.wall(), commit.told)] if commit.told else []
        _check_size(commit.record, len(value), sum(len(node.value) for node in added))
        return [Write(node_paths.record(self._job), value, commit.version), *added]

    async def _node(self) -> StoredNode:
        node = await self._store.read(node_paths.record(self._job))
        if node is None:
            raise UsageError(f"{node_paths.record(self._job)} was deleted by another program: the job's record is lost")
        return node

    async def _found(self) -> StoredNode:
        """Create the job's folders, and a record to be overwritten, so that all later writes are alike."""
        empty = encode_record(new_record(self._job, self._clock.wall()))
        for path in (node_paths.record(self._job), node_paths.events(self._job), node_paths.workers(self._job)):
            try:
                await self._store.create(path, empty if path == node_paths.record(self._job) else b"")
            except NodeExists:  # made by an earlier try, or by a worker that came first
                continue
        return await self._node()


def _check_size(record: Record, record_bytes: int, events_bytes: int) -> None:
    """Raise UsageError for a write that the coordinator would refuse."""
    if record_bytes + events_bytes > MAX_VALUE_BYTES:
        raise UsageError(
            f"the job's record of {len(record.members)} members has {record_bytes} bytes, and {events_bytes} in events "
            f"come with it; the coordinator takes {MAX_VALUE_BYTES} at once: train with fewer workers"
        )


def events_node(job: str, term: int, ts: float, told: Sequence[Tell]) -> Create:
    """Compose one node for all events of a write, and log them."""
    happened = [
        events.Event(ts, job, tell.fact.kind, term, tell.generation, tell.step, tell.fact.details()) for tell in told
    ]
    for event in happened:
        logger.info("%s", event.to_json())
    return Create(node_paths.told(job, len(happened)), events.encode(*happened), sequence=True)


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Retry until the coordinator answers, or the task is cancelled with its term: training goes on meanwhile (I11)."""
    while True:
        try:
            return await call()
        except StoreUnavailable:
            await asyncio.sleep(RETRY_S)
