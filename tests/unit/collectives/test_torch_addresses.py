"""The rows of torch's gloo, cut into parcels and laid out again."""

from __future__ import annotations

import socket
import struct

import pytest

from edl.collectives.torch_addresses import laid_out, listening, split

SIZE = 4


def row(rank: int, port: int = 4711, size: int = SIZE, family: int = socket.AF_INET) -> bytes:
    """As gloo writes it: behind the address proper there is what lay on its stack."""
    if family == socket.AF_INET:
        address = struct.pack("=HH4s", family, socket.htons(port), socket.inet_aton("10.0.0.7"))
    else:
        address = struct.pack("=HHI16sI", family, socket.htons(port), 0, socket.inet_pton(family, "fd00::7"), 0)
    address = address.ljust(128, b"\xaa") + b"\xff" * 8
    numbers = b"".join(struct.pack("<q", 100 * rank + other) for other in range(size))
    return b"".join((struct.pack("<Q", 4), b"node", struct.pack("<Q", len(address)), address, numbers))


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_each_member_finds_its_own_number_and_the_address(family: int) -> None:
    for sender in range(SIZE):
        parcels = split(row(sender, family=family), sender, SIZE)
        assert parcels[sender] == b""
        assert max(map(len, parcels)) < 70  # little of a row of 170 and more
        for reader in set(range(SIZE)) - {sender}:
            found = laid_out(parcels[reader], sender, reader, SIZE)
            assert len(found) == len(row(sender, family=family))
            assert listening(found) == ("10.0.0.7" if family == socket.AF_INET else "fd00::7", 4711)
            (number,) = struct.unpack_from("<q", found, len(found) - 8 * (SIZE - reader))
            assert number == 100 * sender + reader


@pytest.mark.parametrize(
    "wrong", [b"", b"\0" * 7, row(0)[:30], row(0, size=SIZE + 1), struct.pack("<Q", 2**63) + b"x" * 100]
)
def test_a_row_of_another_form_is_refused(wrong: bytes) -> None:
    with pytest.raises(ValueError, match="bytes"):
        split(wrong, 0, SIZE)


def test_a_parcel_of_another_form_is_left_to_its_reader() -> None:
    assert laid_out(b"nonsense", 1, 0, SIZE) == b"nonsense"
    with pytest.raises(ValueError, match="bytes"):
        listening(b"nonsense")
    with pytest.raises(ValueError, match="family 1"):
        listening(row(0).replace(struct.pack("=H", socket.AF_INET), struct.pack("=H", socket.AF_UNIX), 1))
