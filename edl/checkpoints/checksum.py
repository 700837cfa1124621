"""CRC-32C of files: what object stores keep too, at a fifth of the cost of SHA-256 (docs/decisions/checkpoints.md)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import google_crc32c

CHUNK_BYTES = 1 << 20


class Checksum:
    """Of bytes that come one after the other."""

    def __init__(self) -> None:
        self._crc = 0
        self.bytes = 0  # how many have come

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
    """Copied piece by piece: the checksum takes nothing else, and what it has seen is then what is written."""
    plain = content.cast("B")
    for begin in range(0, len(plain), CHUNK_BYTES):
        yield bytes(plain[begin : begin + CHUNK_BYTES])


def summed(chunks: Iterable[bytes], into: Checksum) -> Iterator[bytes]:
    """The same chunks, of which `into` becomes the checksum."""
    for chunk in chunks:
        into.add(chunk)
        yield chunk
