"""The last write of a leader that cannot lead: its resignation, the cause, and whether another one shall try.

Owns: the contents of that write, in the transaction that ends the term. Does not own: that transaction
(`edl.coordination.election`), nor whether another one shall try (`edl.core.job.resignations`).
"""

from __future__ import annotations

import contextlib
import traceback
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from edl.clock import Clock
from edl.coordination.election import Reign
from edl.coordination.store import MAX_VALUE_BYTES, Create, NodeExists, Op, Store, StoredNode, Write
from edl.core.job import resignations
from edl.core.job.leader_inputs import Tell
from edl.core.job.resignations import Resignation, decode, encode
from edl.daemon.record_store import events_node
from edl.errors import InvalidTransition
from edl.facts import Fact, JobHasFailed, LeaderResigned
from edl.protocol import node_paths
from edl.protocol.record import OVER, Record, decode_record, encode_record

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
    """Decode a record; None if there is none, or it cannot be read."""
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
