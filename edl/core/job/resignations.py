"""The resignations of leaders that could not lead, and when they end the job: no other leader would do any better.

Owns: their form in the coordinator, how many leaders may try, and the record that a failed job is left with. Does not
own: which one resigns and why (`edl.daemon.record_store`), nor that those who led well in between are not counted
(it forgets the row).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from edl.core.job.leader_machine import new_record
from edl.protocol.record import JobState, Record

KEPT = 64  # more are not needed: the job ends long before


class Resignation(msgspec.Struct, frozen=True):
    worker: str
    term: int
    cause: str  # equal for failures of the same kind: the exception, and its place
    reason: str  # the cause, for people
    version: int  # of the record when it left; 0: it never had one


def encode(row: Sequence[Resignation]) -> bytes:
    """Encode the newest resignations, oldest first."""
    return msgspec.json.encode(row[-KEPT:])


def decode(value: bytes) -> tuple[Resignation, ...]:
    """Return () if there are none, or the value cannot be read."""
    try:
        return msgspec.json.decode(value, type=tuple[Resignation, ...])
    except msgspec.MsgspecError:
        return ()


LEAST: Final = 3  # what fails once may be over a moment later, also where no other daemon can lead
MOST: Final = 16  # a thousand daemons need not all try what so many could not


def verdict(row: Sequence[Resignation], daemons: int) -> str:
    """Return why the job is to end, after the newest of a row of resignations; empty: another daemon is to try.

    Each of the `daemons` may try, as the obstacle to leading may be its own host.
    """
    newest = row[-1]
    enough = max(LEAST, min(daemons, MOST))
    if sum(one.cause == newest.cause for one in row) >= enough:
        return f"{enough} leaders, one after another, could not lead: {newest.reason}"
    if len(row) >= 3 * enough:
        return f"{len(row)} leaders, one after another, could not lead; the last one: {newest.reason}"
    return ""


def ended(record: Record, reason: str) -> Record:
    version = record.version + 1
    return msgspec.structs.replace(record, version=version, state=JobState.FAILED, reason=reason, plan=None)


def remains(job: str, version: int, reason: str) -> Record:
    """Return a record that can always be taken over, for when the job's own is what no daemon can lead by."""
    return msgspec.structs.replace(ended(new_record(job, 0.0), reason), version=version + 1)
