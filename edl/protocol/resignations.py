"""The resignations of leaders that could not lead, as the coordinator keeps them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

KEPT = 64  # more are not needed: the job ends long before


class Resignation(msgspec.Struct, frozen=True):
    """The resignation of one leader."""

    worker: str
    term: int
    cause: str  # equal for failures of the same kind: the exception, and its place
    reason: str  # the cause, for people
    version: int  # of the record when it left; 0: it never had one


def encode(row: Sequence[Resignation]) -> bytes:
    """Encode the newest resignations, oldest first."""
    return msgspec.json.encode(row[-KEPT:])


def decode(value: bytes) -> tuple[Resignation, ...]:
    """Decode the resignations: () if there are none, or the value cannot be read."""
    try:
        return msgspec.json.decode(value, type=tuple[Resignation, ...])
    except msgspec.MsgspecError:
        return ()
