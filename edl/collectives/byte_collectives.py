"""Bytes and numbers that the members of a ring exchange, on whatever library the ring is built.

Owns: what one message says. Does not own: moving it (behind `Bytes`), nor the ring.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from edl.protocol.assignment import Place

SPOKEN = {  # what edl itself waits for, in words
    "edl.same": "a comparison with the other workers",
    "edl.largest": "an agreement with the other workers",
    "edl.broadcast.head": "another worker's model",
    "edl.broadcast.body": "another worker's model",
}
HEADER_BYTES = 4096  # a broadcast up to this size, less the length itself, needs one message instead of two
LENGTH_BYTES = 8


class Bytes(Protocol):
    """Collectives on bytes and numbers, as tensors of one framework. They raise what the framework raises."""

    def broadcast(self, payload: bytes, root: int, name: str) -> bytes:
        """Return the payload of `root` on all members. All pass payloads of the same length."""

    def largest(self, values: Sequence[int], name: str) -> list[int]:
        """Return the largest of all members' values in each place: signed, of 64 bits."""

    def largest_begun(self, values: Sequence[int], name: str) -> Callable[[], list[int]]:
        """Begin `largest`; return a function that waits for the result."""


class ByteCollectives:
    """Collectives of `edl.collectives.ring_port.Ring` that carry bytes and numbers, in the ring of `place`."""

    def __init__(self, tensors: Bytes) -> None:
        self._tensors = tensors

    def broadcast(self, place: Place, payload: bytes | None, root: int) -> bytes:
        sending = place.rank == root
        if sending and payload is None:
            raise ValueError("the root of a broadcast must pass a payload")
        if place.size == 1:
            return payload or b""
        head = _pack(payload) if sending and payload is not None else bytes(HEADER_BYTES)
        head = self._tensors.broadcast(head, root, "edl.broadcast.head")
        length = int.from_bytes(head[:LENGTH_BYTES], "little")
        if length <= HEADER_BYTES - LENGTH_BYTES:
            return head[LENGTH_BYTES : LENGTH_BYTES + length]
        whole = payload if sending and payload is not None else bytes(length)
        return self._tensors.broadcast(whole, root, "edl.broadcast.body")

    def largest(self, place: Place, values: Sequence[int]) -> list[int]:
        return list(values) if place.size == 1 else self._tensors.largest(values, "edl.largest")

    def same(self, place: Place, value: int) -> Callable[[], bool]:
        if place.size == 1:
            return lambda: True
        signed = value - 2**64 if value >= 2**63 else value
        largest = self._tensors.largest_begun([signed, ~signed], "edl.same")

        def wait() -> bool:
            most, least = largest()
            return most == ~least

        return wait


def spoken(name: str) -> str:
    """Name the collective in words that users understand."""
    return SPOKEN.get(name.removeprefix("broadcast."), name)


def _pack(payload: bytes) -> bytes:
    head = len(payload).to_bytes(LENGTH_BYTES, "little") + payload[: HEADER_BYTES - LENGTH_BYTES]
    return head.ljust(HEADER_BYTES, b"\0")
