"""Send requests to the rendezvous server of horovodrun's driver, and receive its notices that hosts have changed.

Requests are plain HTTP. The server answers a question for a rank only after each of its slots has asked; that may take
hours.

Notices come by Horovod's service protocol: a digest of 32 bytes, a length, and a pickle. A pickle's reader executes it,
so none is loaded here: a sender without the key that the driver was given is refused by the digest, and of other
messages only the class that the pickle names matters. Pickles that are written here, by hand, contain names of the
driver's own classes and plain values only.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import pickletools
import secrets
import struct
from collections.abc import Callable, Mapping, Sequence

import msgspec

from edl.errors import PeerError

_PICKLED_LENGTH = struct.Struct("<I")
_INT = struct.Struct("<i")

Value = str | bytes | int | tuple["Value", "Value"] | Sequence["Value"] | Mapping[str, "Value"]


def written(value: Value) -> bytes:
    """Pickle a plain value."""
    return b"\x80\x03" + _body(value) + b"."


def written_object(module: str, name: str, state: Mapping[str, Value]) -> bytes:
    """Pickle an object of that class with these attributes."""
    return b"\x80\x03" + f"c{module}\n{name}\n".encode() + b")\x81" + _body(state) + b"b."


def names_in(pickled: bytes) -> set[str]:
    """Return the texts in a pickle, the names of its classes among them."""
    found: set[str] = set()
    try:
        for _, argument, _ in pickletools.genops(pickled):
            if isinstance(argument, str):
                found.update((argument, *argument.split(" ")))
    except (ValueError, IndexError, struct.error, OverflowError):  # no pickle, or a truncated one
        return set()
    return found


def _body(value: Value) -> bytes:
    match value:
        case str():
            raw = value.encode()
            return b"X" + _PICKLED_LENGTH.pack(len(raw)) + raw
        case bytes():
            return b"B" + _PICKLED_LENGTH.pack(len(value)) + value
        case int():
            return b"J" + _INT.pack(value)
        case tuple():
            first, second = value
            return _body(first) + _body(second) + b"\x86"
        case Mapping():
            return b"}(" + b"".join(_body(key) + _body(inner) for key, inner in value.items()) + b"u"
        case _:
            return b"](" + b"".join(map(_body, value)) + b"e"


LONGEST = 65_536
ANSWER_S = 5.0


class SlotCount(msgspec.Struct, frozen=True):
    """The driver's numbers for one slot: `rank` is -1 once the slot is none of its workers any more."""

    rank: int
    size: int
    slots: int  # slots on the same host


class Driver:
    """The client of one driver's server."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port

    async def ask(self, slot: str) -> SlotCount:
        """Return the slot's rank after the next recount. Raises PeerError when the driver is gone."""
        body = await self._request("GET", f"/rank_and_size/{slot}", b"", None)
        try:
            rank, size, _, slots = (int(number) for number in (body or b"").split(b",")[:4])
        except ValueError:
            raise PeerError(f"horovodrun's driver answers {body!r} instead of a rank") from None
        return SlotCount(rank, size, slots)

    async def is_there(self) -> bool:
        """Return False if the driver's process has ended. Raises PeerError if its host is not reached, which tells
        nothing of it.
        """
        try:
            async with asyncio.timeout(ANSWER_S):
                _, writer = await asyncio.open_connection(self._host, self._port)
        except ConnectionRefusedError:
            return False
        except (OSError, TimeoutError) as error:
            raise PeerError(f"horovodrun's driver at {self._host}:{self._port} is not reached: {error!r}") from None
        writer.close()
        return True

    async def get(self, scope: str, key: str) -> bytes | None:
        """Return the value put there since the driver's last recount. Raises PeerError."""
        return await self._request("GET", f"/{scope}/{key}", b"", ANSWER_S)

    async def put(self, scope: str, key: str, value: bytes) -> None:
        """Raises PeerError."""
        await self._request("PUT", f"/{scope}/{key}", value, ANSWER_S)

    async def announce(self, slot: str, interface: str, address: str, port: int, key: bytes) -> None:
        """Tell the driver where to report changed hosts, in the form that Horovod's own workers use."""
        value = written(({interface: [(address, port)]}, key))  # the driver reads no other form
        await self.put("worker_addresses", slot, base64.b64encode(value))

    async def _request(self, method: str, path: str, body: bytes, timeout_s: float | None) -> bytes | None:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._exchange(method, path, body)
        except (OSError, TimeoutError, EOFError) as error:
            raise PeerError(f"horovodrun's driver at {self._host}:{self._port} does not answer: {error!r}") from None

    async def _exchange(self, method: str, path: str, body: bytes) -> bytes | None:
        """Return the body of the answer; None if there is nothing by that name."""
        reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            head = f"{method} {path} HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            answer = await reader.read(LONGEST)  # the server closes the connection after each answer
            while piece := await reader.read(LONGEST):
                answer += piece
                if len(answer) > 16 * LONGEST:
                    raise EOFError("too long an answer")
        finally:
            writer.close()
        status, _, rest = answer.partition(b"\r\n")
        code = status.split(b" ")[1:2]
        if code == [b"404"]:
            return None
        if code != [b"200"]:
            raise EOFError(f"answered {status[:80]!r}")
        return rest.partition(b"\r\n\r\n")[2]


_DIGEST = 32
_LENGTH = struct.Struct("=i")
_LONGEST = 65_536
_PATIENCE_S = 10.0
_MODULE = "horovod.runner.common.util.network"
_SERVICE = "worker notification service"


class HostUpdates:
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
        names = names_in(message)
        if "HostsUpdatedRequest" in names:
            self._changed()
            return written_object(_MODULE, "AckResponse", {})
        if "PingRequest" in names:
            return written_object(_MODULE, "PingResponse", {"service_name": _SERVICE, "source_address": peer})
        return b""
