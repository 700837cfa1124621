"""The record as it lies at the coordinator: JSON that people can read, packed where there is much of it.

A node holds 1 MB at most, and what is larger cannot be kept at all. A thousand workers' record has a third of that, and
the ledger of each plan that was dropped since the present generation comes on top, as large as the first. But members
and leases are much alike, so that all of it packs to a fraction.
"""

from __future__ import annotations

import zlib
from typing import Final

import msgspec

from edl.protocol.job import Record

PACKED_FROM: Final = 64 * 1024
LEVEL: Final = 1  # 3 ms for a thousand workers; more would take longer than it saves


def encode(record: Record) -> bytes:
    """For the node. Equal records of one process are equal bytes."""
    plain = msgspec.json.encode(record)
    return plain if len(plain) < PACKED_FROM else zlib.compress(plain, LEVEL)


def decode(value: bytes) -> Record:
    """What a leader has kept. Raises `msgspec.MsgspecError` or `zlib.error` for anything else."""
    return msgspec.json.decode(value if value.startswith(b"{") else zlib.decompress(value), type=Record)
