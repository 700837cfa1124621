"""Receive notices of horovodrun's driver that its hosts have changed.

The driver speaks Horovod's service protocol: a digest of 32 bytes, a length, and a pickle. Here no pickle is ever
loaded. A sender without the key that the driver was given is refused by the digest; of other messages only the class
that the pickle names matters, which is read without executing the pickle.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import struct
from collections.abc import Callable

from edl.horovodrun import pickles

_DIGEST = 32
_LENGTH = struct.Struct("=i")
_LONGEST = 65_536
_PATIENCE_S = 10.0
_MODULE = "horovod.runner.common.util.network"
_SERVICE = "worker notification service"


class Notices:
    """The listener of one slot."""

    def __init__(self, changed: Callable[[], object]) -> None:
        self.key = secrets.token_hex(16).encode()  # in the form that Horovod's own key has
        self._changed = changed
        self._server: asyncio.Server | None = None

    async def start(self, address: str) -> int:
        """Listen at `address`; return the port."""
        self._server = await asyncio.start_server(self._serve, address, 0)
        return int(self._server.sockets[0].getsockname()[1])

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                message = await self._read(reader)
                answer = self._answer(message, str(writer.get_extra_info("peername")[0])) if message else b""
                if answer:
                    digest = hmac.new(self.key, answer, hashlib.sha256).digest()
                    writer.write(digest + _LENGTH.pack(len(answer)) + answer)
                    await writer.drain()
        except (OSError, EOFError, TimeoutError):
            pass  # the caller closed the connection, or sent nothing
        finally:
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> bytes | None:
        """Read one message; return None if its sender does not have the key."""
        digest = await reader.readexactly(_DIGEST)
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if not 0 < length <= _LONGEST:
            return None
        message = await reader.readexactly(length)
        ours = hmac.new(self.key, message, hashlib.sha256).digest()
        return message if hmac.compare_digest(ours, digest) else None

    def _answer(self, message: bytes, peer: str) -> bytes:
        names = pickles.names_in(message)
        if "HostsUpdatedRequest" in names:
            self._changed()
            return pickles.written_object(_MODULE, "AckResponse", {})
        if "PingRequest" in names:
            return pickles.written_object(_MODULE, "PingResponse", {"service_name": _SERVICE, "source_address": peer})
        return b""
