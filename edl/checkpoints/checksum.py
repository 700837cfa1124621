"""CRC-32C of files, which object stores keep too, at a fifth of the cost of SHA-256 (docs/decisions/checkpoints.md)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import google_crc32c

CHUNK_BYTES = 1 << 20


class Checksum:
    """The checksum of bytes that come chunk after chunk."""

    def __init__(self) -> None:
        self._crc = 0
        self.bytes = 0  # number of bytes so far

    def add(self, chunk: bytes) -> None:
        self._crc = google_crc32c.extend(self._crc, chunk)
        self.bytes += len(chunk)

    def __str__(self) -> str:
        return f"crc32c:{self._crc:08x}"


def checksum_of(content: bytes) -> str:
    found = Checksum()
    found.add(content)
    return str(found)


def chunks_of(content: memoryview) -> Iterator[bytes]:
    """Yield copies of the content's chunks: the checksum takes only bytes, and a copy cannot change between checksum
    and write.
    """
    plain = content.cast("B")
    for begin in range(0, len(plain), CHUNK_BYTES):
        yield bytes(plain[begin : begin + CHUNK_BYTES])


def summed(chunks: Iterable[bytes], into: Checksum) -> Iterator[bytes]:
    """Yield the same chunks, and add each to the checksum `into`."""
    for chunk in chunks:
        into.add(chunk)
        yield chunk
