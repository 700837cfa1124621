"""Process the bytes of a request on a server, and of a reply on a client, over any transport.

Owns: the order of the checks, the counting of refusals, numbering. Does not own: sockets (`edl.transport.rpc`), nor
whether a message's generation is stale: the generation is part of the body, and the handler knows
(`Reason.GENERATION`).

A message is accepted once. A sender numbers its messages 1, 2, 3, ... under a boot id that it draws at random when it
starts. Numbers may overtake each other a little (calls of one process run side by side), so a window of late numbers is
remembered, as IPsec does (RFC 4303, 3.4.3); numbers older than the window are refused, whether they were seen or not.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from itertools import count
from types import UnionType
from typing import Any, NoReturn, TypeVar, overload

import msgspec

from edl.transport.call_errors import Reason, Refusals, Refused, Unauthentic
from edl.transport.seal import MAX_BYTES, Reply, Request, Seal

WINDOW = 1024
BOOTS = 8192


class _Seen:
    """The numbers of one sender: bit k of `mask` tells that `highest - k` was received."""

    __slots__ = ("highest", "mask")

    def __init__(self) -> None:
        self.highest = 0
        self.mask = 0


class ReplayGuard:
    """Remember the messages received, in bounded memory: the sender that was silent longest is forgotten first.

    Only holders of the secret can make a new boot id, so a stranger cannot push a sender out. Messages of a forgotten
    sender are still bound to their term.
    """

    def __init__(self, window: int = WINDOW, boots: int = BOOTS) -> None:
        self._window = window
        self._boots = boots
        self._kept = (1 << window) - 1
        self._senders: OrderedDict[bytes, _Seen] = OrderedDict()

    def admit(self, boot: bytes, number: int) -> bool:
        """Return True the first time, False ever after."""
        if number < 1:
            return False
        seen = self._senders.get(boot)
        if seen is None:
            seen = self._senders[boot] = _Seen()
            if len(self._senders) > self._boots:
                self._senders.popitem(last=False)
        self._senders.move_to_end(boot)
        return self._admit(seen, number)

    def _admit(self, seen: _Seen, number: int) -> bool:
        ahead = number - seen.highest
        if ahead > 0:
            shifted = seen.mask << ahead if ahead < self._window else 0  # a huge number must not make a huge integer
            seen.mask = (shifted | 1) & self._kept
            seen.highest = number
            return True
        bit = 1 << -ahead if -ahead < self._window else 0
        if not bit or seen.mask & bit:
            return False
        seen.mask |= bit
        return True


logger = logging.getLogger(__name__)

R = TypeVar("R")

REPLY_HEAD_BYTES = 4096  # upper bound of a reply without its body


class Call(msgspec.Struct, frozen=True):
    """A request that passed all checks."""

    sender: str
    term: int  # 0: the sender does not know it
    body: Any  # a member of the service's request types


Handler = Callable[[Call], Awaitable[msgspec.Struct]]


class Service:
    """The answering side of a job.

    `term` 0 means: not leading. A request of term 0 tells that its sender does not know the term; it is accepted only
    for the types in `termless`, at any term of the server's.
    """

    def __init__(
        self,
        secret: bytes,
        job: str,
        handler: Handler,
        *,
        request_types: Any,
        refusals: Refusals,
        termless: tuple[type, ...] = (),
    ) -> None:
        self.term = 0
        self.address = ""  # where it listens, once it does, as callers write it
        self._seal = Seal(secret)
        self._job = job
        self._handler = handler
        self._bodies = msgspec.msgpack.Decoder(request_types)
        self._refusals = refusals
        self._termless = termless
        self._guard = ReplayGuard()

    async def answer(self, wire: bytes) -> bytes:
        """Return the sealed reply, a refusal included. Raises Refused or Unauthentic if the sender proved nothing."""
        request = self._authenticate(wire)
        term = self.term
        try:
            body = msgspec.msgpack.encode(await self._handle(request))
            if len(body) > MAX_BYTES - REPLY_HEAD_BYTES:
                raise Refused(Reason.OVERSIZED, detail=f"a reply of {len(body)} bytes")
            reply = Reply(self._job, term, None, "", body)
        except Refused as refusal:
            self._refusals.count(refusal.reason)
            reply = Reply(self._job, self.term, refusal.reason, refusal.detail, b"")
        return self._seal.seal_reply(reply, wire)

    def _authenticate(self, wire: bytes) -> Request:
        try:
            return self._seal.open_request(wire)
        except Unauthentic:
            self._refusals.count(Reason.UNAUTHENTIC)
            raise
        except Refused as refusal:
            self._refusals.count(refusal.reason)
            raise

    async def _handle(self, request: Request) -> msgspec.Struct:
        call = self._admit(request)
        try:
            reply = await self._handler(call)
        except Refused:
            raise
        except Exception as error:  # the caller must get an answer, and this leader must go on
            logger.exception("%s of %s failed", type(call.body).__name__, call.sender)
            raise Refused(Reason.FAILED, detail=type(error).__name__) from error
        if request.term and request.term != self.term:  # the term ended while the handler held the call
            raise Refused(Reason.TERM)
        return reply

    def _admit(self, request: Request) -> Call:
        if request.job != self._job:
            raise Refused(Reason.JOB, detail=f"this is job {self._job}")
        if request.to != self.address:
            raise Refused(Reason.RECIPIENT, detail=f"this is {self.address}")
        if not self._guard.admit(request.boot, request.number):
            raise Refused(Reason.REPLAYED)
        try:
            body = self._bodies.decode(request.body)
        except msgspec.MsgspecError as error:
            raise Refused(Reason.UNKNOWN_MESSAGE, detail=str(error)) from error
        asks_without_term = request.term == 0 and isinstance(body, self._termless)
        if not asks_without_term and (request.term == 0 or request.term != self.term):
            raise Refused(Reason.TERM)
        return Call(request.sender, request.term, body)


class Speaker:
    """The asking side of a job: seal requests to the daemon at one address, and open its replies."""

    def __init__(self, secret: bytes, job: str, sender: str, address: str) -> None:
        self._seal = Seal(secret)
        self._job = job
        self._sender = sender
        self._address = address
        self._boot = secrets.token_bytes(16)
        self._numbers = count(1)

    def seal(self, body: msgspec.Struct, term: int) -> bytes:
        """Raises Refused if no server would take the request."""
        payload = msgspec.msgpack.encode(body)
        number = next(self._numbers)
        request = Request(self._job, term, self._address, self._sender, self._boot, number, payload)
        wire = self._seal.seal_request(request)
        if len(wire) > MAX_BYTES:
            raise Refused(Reason.OVERSIZED, detail=f"{len(wire)} bytes of at most {MAX_BYTES}")
        return wire

    @overload
    def open(self, wire: bytes, request_wire: bytes, reply_type: type[R]) -> R: ...
    @overload
    def open(self, wire: bytes, request_wire: bytes, reply_type: UnionType) -> Any: ...
    def open(self, wire: bytes, request_wire: bytes, reply_type: Any) -> Any:
        """Return the reply's body. Raises Refused and Unauthentic."""
        reply = self._seal.open_reply(wire, request_wire)
        if reply.refusal is not None:
            raise Refused(reply.refusal, reply.term, reply.detail)
        if reply.job != self._job:
            raise Refused(Reason.JOB, reply.term, f"the reply is of job {reply.job}")
        try:
            return msgspec.msgpack.decode(reply.body, type=reply_type)
        except msgspec.MsgspecError as error:
            raise Refused(Reason.UNKNOWN_MESSAGE, reply.term, str(error)) from error


def being_cancelled() -> bool:
    """Tell whether a caught CancelledError cancels the present task, and not the call it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def unproven(reason: Reason, detail: str) -> NoReturn:
    """Raise a failure that a peer reported without a seal: true or not, the call has failed."""
    if reason is Reason.UNAUTHENTIC:
        raise Unauthentic(detail)
    raise Refused(reason, detail=detail)
