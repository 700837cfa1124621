"""A job's record and its events in the coordinator, as one leader writes them, up to its last write.

A leader that cannot lead resigns in its last write, which ends the term and says why. Owns: the stored nodes, carrying
out the commands of `edl.core.job.commit`, and the contents of that write. Does not own: the transaction that ends the
term (`edl.coordination.election`), nor whether another leader shall try (`edl.core.job.resignations`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import traceback
import zlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec

from edl import events
from edl.clock import Clock
from edl.coordination.election import Reign
from edl.coordination.store import MAX_VALUE_BYTES, Create, NodeExists, Op, Store, StoredNode, VersionConflict, Write
from edl.core.job import resignations
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
from edl.core.job.resignations import Resignation, decode, encode
from edl.daemon import leftovers
from edl.errors import InvalidTransition, StoreUnavailable, UsageError
from edl.facts import Fact, JobHasFailed, LeaderResigned
from edl.protocol import node_paths
from edl.protocol.record import OVER, Record, decode_record, encode_record

logger = logging.getLogger("edl")

RETRY_S: Final = 0.1

A = TypeVar("A")
T = TypeVar("T")


class RecordStore(Generic[A]):
    """The store of one leader, for one term."""

    def __init__(
        self, job: str, store: Store, reign: Reign, clock: Clock, tell: Callable[[Telling[A]], None] = lambda _: None
    ) -> None:
        """`tell` is called with each answer that may be given, once its cause is durable."""
        self._job = job
        self._store = store
        self._reign = reign
        self._clock = clock
        self._tell = tell
        self.writing: Writing[A] | None = None  # from the record that was found on

    @property
    def record(self) -> Record | None:
        """The record as it is in the coordinator; None: unknown yet."""
        return None if self.writing is None else self.writing.record

    async def open(self) -> Record:
        """Read the record of the leaders before; the first leader makes one of a job that no worker has joined yet."""
        node = await patiently(lambda: self._store.read(node_paths.record(self._job)))
        if node is None:
            node = await patiently(self._found)
        record = decode_record(node.value)
        self.writing = Writing(record, node.version, self._reign.term)
        return record

    async def keep(self, decided: BatchDecided[A]) -> None:
        """Make a batch durable, then give its answers.

        Raises Fenced if the term is over, StoreUnavailable if it is not known whether the batch is durable, so that the
        term has to end, and UsageError if the batch cannot be stored.
        """
        assert self.writing is not None
        due = deque(self.writing.handle(decided))
        while due:
            match due.popleft():
                case Commit() | ForgetSecret() as command:
                    due.extend(self.writing.handle(await self._outcome(command)))
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


REASON_LENGTH: Final = 500
SPARE_BYTES: Final = 100_000  # space for the nodes written with the record
PACKAGE: Final = Path(__file__).parents[1]


class ResignationWriter:
    """The last write of one leader. Call it for the operations; it may be called again, if they could not be
    written.
    """

    def __init__(self, job: str, worker: str, store: Store, reign: Reign, clock: Clock, error: BaseException) -> None:
        self._job = job
        self._worker = worker
        self._store = store
        self._reign = reign
        self._clock = clock
        self.cause, self.reason = cause_of(error), reason_of(error)
        self.ends_job = False  # by the last call: the write ends the job
        self.job_was_over = False  # by the last call: nothing is left to lead, and not even that could be reported

    async def __call__(self) -> Sequence[Op]:
        """Return the operations to write. Raises StoreUnavailable."""
        kept = await self._store.read(node_paths.record(self._job))
        record = _decoded(kept)
        self.job_was_over = record is not None and record.state in OVER
        for folder in (node_paths.events(self._job), node_paths.workers(self._job)):
            with contextlib.suppress(NodeExists):  # only a job's first leader has to make these folders
                await self._store.create(folder)
        row, put = await self._row(0 if record is None else record.version)
        ops, told = [put], list[Fact]([LeaderResigned(worker=self._worker, reason=self.reason)])
        daemons = len(await self._store.children(node_paths.workers(self._job)))
        if reason := resignations.verdict(row, daemons):
            ops.append(_put(node_paths.record(self._job), kept, self._end(record, reason)))
            told += [] if self.job_was_over else [JobHasFailed(reason=reason)]
        self.ends_job = bool(reason)
        return [*ops, self._events(record, told)]

    async def _row(self, version: int) -> tuple[tuple[Resignation, ...], Op]:
        """Return the resignations with the present one added, and the operation that writes them."""
        path = node_paths.resigned(self._job)
        node = await self._store.read(path)
        before = decode(node.value) if node is not None else ()
        row = (*before, Resignation(self._worker, self._reign.term, self.cause, self.reason, version))
        return row, _put(path, node, encode(row))

    def _end(self, record: Record | None, reason: str) -> bytes:
        """Return the ended record, cut to the size that can be stored; only its essence if even an ended record cannot
        be led.
        """
        whole = (
            encode_record(resignations.ended(record, reason)) if record is not None and not self.job_was_over else b""
        )
        if 0 < len(whole) <= MAX_VALUE_BYTES - SPARE_BYTES:
            return whole
        return encode_record(resignations.remains(self._job, 0 if record is None else record.version, reason))

    def _events(self, record: Record | None, facts: Sequence[Fact]) -> Create:
        generation = 0 if record is None else record.generation
        step = 0 if record is None else record.began_step if record.ledger is None else record.ledger.step
        told = [Tell(fact, generation, step) for fact in facts]
        return events_node(self._job, self._reign.term, self._clock.wall(), told)


def _decoded(node: StoredNode | None) -> Record | None:
    """Return None if there is no record, or it cannot be read."""
    try:
        return None if node is None else decode_record(node.value)
    except (msgspec.MsgspecError, zlib.error, UnicodeDecodeError):
        return None


async def forget(job: str, store: Store, reign: Reign, version: int) -> bool:
    """Forget earlier resignations once this leader has led for long, and has decided something. False: it has not
    decided.
    """
    node = await store.read(node_paths.resigned(job))
    row = decode(node.value) if node is not None else ()
    if row and row[-1].version >= version:
        return False
    if row:
        await store.commit([Write(node_paths.resigned(job), encode(()))], fence=reign.fence)
    return True


def cause_of(error: BaseException) -> str:
    """Return the exception's type and its place in edl: equal for leaders that fail in the same way, whatever the
    message.
    """
    error = first_of(error)
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).is_relative_to(PACKAGE)
    ]
    where = f" at {Path(frames[-1].filename).relative_to(PACKAGE)}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{where}"


def reason_of(error: BaseException) -> str:
    """Return the reason in one line for people."""
    error = first_of(error)
    line = (str(error).splitlines() or [""])[0]
    if isinstance(error, InvalidTransition) or not line:
        line = f"{cause_of(error)}: {line}"
    elif type(error).__module__ == "builtins":
        line = f"{type(error).__name__}: {line}"
    return line[:REASON_LENGTH]


def first_of(error: BaseException) -> BaseException:
    """Return the first exception of a group of tasks."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _put(path: str, node: StoredNode | None, value: bytes) -> Op:
    return Create(path, value) if node is None else Write(path, value, node.version)
