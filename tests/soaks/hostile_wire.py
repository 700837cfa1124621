"""The bytes of tests/soaks/hostile.py: just enough HTTP/2 to say wrong things in it, and to see what comes back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, GOAWAY = 0x0, 0x1, 0x3, 0x4, 0x7
END_STREAM, END_HEADERS = 0x1, 0x4
CONNECT_S = 10.0
METHOD = "/edl.Job/Call"


class Heard(NamedTuple):
    """What a connection brought back."""

    received: bytes
    closed: bool  # by the other side


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def opening() -> bytes:
    """What an honest client says first."""
    return PREFACE + frame(SETTINGS, 0, 0)


def call_head(stream: int, path: str = METHOD) -> bytes:
    """The head of a gRPC call, all of its fields spelled out (RFC 7541, 6.2.2)."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "stranger",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    parts = (bytes((len(part),)) + part.encode() for field in fields.items() for part in field)
    block = b"".join(b"\x00" + name + next(parts) for name in parts)
    return frame(HEADERS, END_HEADERS, stream, block)


def frames(received: bytes) -> Iterator[tuple[int, bytes]]:
    """Kind and payload of each."""
    while len(received) >= 9:
        length = int.from_bytes(received[:3], "big")
        yield received[3], received[9 : 9 + length]
        received = received[9 + length :]


async def exchange(address: tuple[str, int], *parts: bytes, pause_s: float = 0.0, patience_s: float = 0.3) -> Heard:
    """Connect, say all parts, and listen until the other side hangs up or nothing comes any more."""
    async with asyncio.timeout(CONNECT_S):
        reader, writer = await asyncio.open_connection(*address)
    received = bytearray()
    try:
        for part in parts:
            writer.write(part)
            await asyncio.wait_for(writer.drain(), CONNECT_S)
            await asyncio.sleep(pause_s)
        while piece := await asyncio.wait_for(reader.read(65536), patience_s):
            received += piece
    except TimeoutError:
        return Heard(bytes(received), closed=False)
    except ConnectionError:
        pass
    finally:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    return Heard(bytes(received), closed=True)
