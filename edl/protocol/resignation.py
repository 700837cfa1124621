"""Leaders that could not lead, as they have left word of it in the coordinator."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

KEPT = 64  # more are not needed: the job ends long before


class Resignation(msgspec.Struct, frozen=True):
    """One of them."""

    worker: str
    term: int
    cause: str  # equal for those that failed in the same way: what was raised, and where
    reason: str  # the same, for people
    version: int  # of the record as it left it; 0: it never had one


def encode(row: Sequence[Resignation]) -> bytes:
    """The newest ones, oldest first."""
    return msgspec.json.encode(row[-KEPT:])


def decode(value: bytes) -> tuple[Resignation, ...]:
    """None where no leader has ever resigned, or all was well since. What cannot be read counts for nothing."""
    try:
        return msgspec.json.decode(value, type=tuple[Resignation, ...])
    except msgspec.MsgspecError:
        return ()
