"""The record as the coordinator stores it: JSON that people can read, compressed if it is large.

A node holds at most 1 MB, and larger values cannot be stored at all. The record of a thousand workers has a third of
that, and each plan dropped since the present generation adds a ledger of the same size. But members and leases are much
alike, so that compression leaves a fraction.
"""

from __future__ import annotations

import zlib
from typing import Final

import msgspec

from edl.protocol.record import Record

PACKED_FROM: Final = 64 * 1024
LEVEL: Final = 1  # 3 ms for a thousand workers; a higher level would take longer than it saves


def encode(record: Record) -> bytes:
    """Encode a record for its node. Equal records of one process are equal bytes."""
    plain = msgspec.json.encode(record)
    return plain if len(plain) < PACKED_FROM else zlib.compress(plain, LEVEL)


def decode(value: bytes) -> Record:
    """Decode a stored record. Raises `msgspec.MsgspecError` or `zlib.error` for anything else."""
    return msgspec.json.decode(value if value.startswith(b"{") else zlib.decompress(value), type=Record)
