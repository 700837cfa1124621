"""The addresses at which gloo listens, as it writes them down for the other members of a mesh.

gloo of Horovod 0.28.1 opens one socket for each pair (gloo/transport/tcp/pair.cc). A member's row has one address for
each other member, in the order of their ranks, its own left out (gloo/rendezvous/context.cc): a `sockaddr_storage` of
128 bytes and a number of 8, which is -1 (gloo/transport/tcp/address.h). Of the first, what follows the address proper
is whatever lay on the trainer's stack. It does not travel, and neither does what is always alike.

Owns: that form. Does not own: who gets which address (`edl.core.switch.address_exchange`). Pure.
"""

from __future__ import annotations

import socket

STORAGE_BYTES = 128
FAMILY_BYTES = 2
UNNUMBERED = b"\xff" * 8
WIDTH = STORAGE_BYTES + len(UNNUMBERED)
# Family, port and an address: of a `sockaddr_in` the rest is not looked at.
_USED: dict[int, int] = {socket.AF_INET: 8, socket.AF_INET6: 28}


def split(row: bytes, rank: int, size: int) -> list[bytes]:
    """Return a parcel for each rank, empty for our own. Raises ValueError."""
    others = size - 1
    if not others or not row or len(row) % others:
        raise ValueError(f"{len(row)} bytes are not the addresses of {others} pairs")
    width = len(row) // others
    parcels = [trimmed(row[begin : begin + width]) for begin in range(0, len(row), width)]
    return [*parcels[:rank], b"", *parcels[rank:]]


def laid_out(parcel: bytes, sender: int, rank: int, size: int) -> bytes:
    """Return a row of `sender` as `rank` reads it: only that rank's address and the row's length count."""
    address = whole(parcel)
    place = rank if rank < sender else rank - 1
    return b"".join((bytes(place * len(address)), address, bytes((size - 2 - place) * len(address))))


def trimmed(address: bytes) -> bytes:
    """Cut off the bytes of an address that no reader looks at."""
    used = _USED.get(family(address))
    if len(address) != WIDTH or used is None or address[STORAGE_BYTES:] != UNNUMBERED:
        return address  # not as we know it: it travels as it is
    return address[:used]


def whole(parcel: bytes) -> bytes:
    """Undo `trimmed`."""
    if len(parcel) != _USED.get(family(parcel)):
        return parcel
    return parcel.ljust(STORAGE_BYTES, b"\0") + UNNUMBERED


def family(address: bytes) -> int:
    """Return the address family: AF_INET, AF_INET6, or a number that is neither."""
    return int.from_bytes(address[:FAMILY_BYTES], "little")  # of x86 and ARM; elsewhere it is none that we know
