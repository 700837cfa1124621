"""Send requests to the rendezvous server of horovodrun's driver: plain HTTP, without loading pickles.

The server answers a question for a rank only after each of its slots has asked; that may take hours.
"""

from __future__ import annotations

import asyncio
import base64

import msgspec

from edl.errors import PeerError
from edl.horovodrun import pickles

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
        """Put a value into the driver's store. Raises PeerError."""
        await self._request("PUT", f"/{scope}/{key}", value, ANSWER_S)

    async def announce(self, slot: str, interface: str, address: str, port: int, key: bytes) -> None:
        """Tell the driver where to report changed hosts, in the form that Horovod's own workers use."""
        value = pickles.written(({interface: [(address, port)]}, key))  # the driver reads no other form
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
