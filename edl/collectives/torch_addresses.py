"""The address at which torch's gloo listens, as it is written for the other members of a mesh.

gloo of PyTorch (since 2.6; gloo/transport/tcp/context.cc) opens one socket for all pairs. A member's row is the name of
its host, the address of that socket, and a number of 8 bytes for each rank, by which the pair is known there: each of
the first two with its length in front, as 8 bytes. A member needs the row without the numbers of others.

Owns: that form. Does not own: the address itself, which is as Horovod's gloo writes it
(`edl.collectives.gloo_addresses`), nor who gets which (`edl.core.switch.address_exchange`). Pure.
"""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

from edl.collectives import gloo_addresses

NUMBER_BYTES = 8
_LENGTH = struct.Struct("<Q")
_PORT = struct.Struct("!H")

Listening = tuple[str, int]


class _Row(NamedTuple):
    host: bytes
    address: bytes
    numbers: bytes

    def bytes(self) -> bytes:
        return b"".join((_sized(self.host), _sized(self.address), self.numbers))


def split(row: bytes, rank: int, size: int) -> list[bytes]:
    """Return a parcel for each rank, empty for our own. Raises ValueError."""
    parts = _parsed(row)
    if len(parts.numbers) != size * NUMBER_BYTES:
        raise ValueError(f"{len(parts.numbers)} bytes are not the numbers of {size} pairs")
    head = _sized(parts.host) + _sized(gloo_addresses.trimmed(parts.address))
    parcels = [
        head + parts.numbers[begin : begin + NUMBER_BYTES] for begin in range(0, len(parts.numbers), NUMBER_BYTES)
    ]
    return [*parcels[:rank], b"", *parcels[rank + 1 :]]


def laid_out(parcel: bytes, sender: int, rank: int, size: int) -> bytes:  # noqa: ARG001 - as that of Horovod's gloo
    """Return a row of `sender` as `rank` reads it: only that rank's number and the count of numbers matter."""
    try:
        host, address, number = _parsed(parcel)
    except ValueError:
        return parcel  # not as we know it: the daemon that reads it says so
    numbers = bytes(rank * NUMBER_BYTES) + number + bytes((size - 1 - rank) * NUMBER_BYTES)
    return _Row(host, gloo_addresses.whole(address), numbers).bytes()


def listening(row: bytes) -> Listening:
    """Return the address at which the writer of the row listens. Raises ValueError."""
    address = _parsed(row).address
    family = gloo_addresses.family(address)
    (port,) = _PORT.unpack_from(address, gloo_addresses.FAMILY_BYTES)
    if family == socket.AF_INET:
        return socket.inet_ntop(socket.AF_INET, address[4:8]), port
    if family == socket.AF_INET6:
        return socket.inet_ntop(socket.AF_INET6, address[8:24]), port
    raise ValueError(f"an address of family {family} is none that we know")


def _parsed(row: bytes) -> _Row:
    host, rest = _taken(row)
    address, numbers = _taken(rest)
    return _Row(host, address, numbers)


def _taken(data: bytes) -> tuple[bytes, bytes]:
    """Return the part behind its length, and the rest."""
    if len(data) < _LENGTH.size:
        raise ValueError(f"{len(data)} bytes are no part of a row")
    (length,) = _LENGTH.unpack_from(data)
    end = _LENGTH.size + length
    if length > len(data) or end > len(data):
        raise ValueError(f"a part of {length} bytes in a row of {len(data)}")
    return data[_LENGTH.size : end], data[end:]


def _sized(part: bytes) -> bytes:
    return _LENGTH.pack(len(part)) + part
