"""The sealed form of a message: its sender and recipient, its job and term, and the proof of its origin (I10).

    request on the wire:  version (1 byte) | MAC (32) | msgpack of Request
    reply on the wire:    version (1 byte) | MAC (32) | msgpack of Reply

Both MACs are HMAC-SHA256 over the version and all that follows, under two keys derived from the job's secret, so that
no request can pass for a reply. A request names the address that it is sent to: a recorded request is valid for no
other daemon, nor for another run of a job of that name and secret. A reply's MAC also covers the MAC of its request,
and no two requests are alike (boot id and number, see `edl.transport.service`): a reply can neither answer another
request nor be used twice.

Owns: bytes. Does not own: which messages are refused (`edl.transport.service`), nor how bytes travel. Pure.
"""

from __future__ import annotations

import hmac

import msgspec

from edl.errors import ConfigError
from edl.transport.call_errors import Reason, Refused, Unauthentic

VERSION = 2
MAX_BYTES = 16 * 1024 * 1024
SHORTEST_SECRET = 16

_VERSION = bytes([VERSION])
_MAC_BYTES = 32
_HEAD_BYTES = len(_VERSION) + _MAC_BYTES


class Request(msgspec.Struct, frozen=True, array_like=True):
    """The contents of a request without its seal."""

    job: str
    term: int
    to: str  # the address of the daemon that is called
    sender: str
    boot: bytes  # random per sending process
    number: int  # grows with each message of that process
    body: bytes  # msgpack of one member of a tagged union


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """The contents of a reply without its seal. A refusal has an empty body."""

    job: str
    term: int  # the answering leader's, 0 while it does not lead
    refusal: Reason | None
    detail: str
    body: bytes


class Seal:
    """Seal and open messages by the job's secret."""

    def __init__(self, secret: bytes) -> None:
        if len(secret) < SHORTEST_SECRET:
            raise ConfigError(f"the job's secret has {len(secret)} bytes; give it {SHORTEST_SECRET} or more")
        self._request_key = hmac.digest(secret, b"edl request", "sha256")
        self._reply_key = hmac.digest(secret, b"edl reply", "sha256")
        self._requests = msgspec.msgpack.Decoder(Request)
        self._replies = msgspec.msgpack.Decoder(Reply)

    def seal_request(self, request: Request) -> bytes:
        return _seal(self._request_key, b"", msgspec.msgpack.encode(request))

    def open_request(self, wire: bytes) -> Request:
        """Raises Refused (size, version, form) and Unauthentic."""
        payload = _open(self._request_key, b"", wire)
        try:
            return self._requests.decode(payload)
        except msgspec.MsgspecError as error:
            raise Refused(Reason.MALFORMED, detail=str(error)) from error

    def seal_reply(self, reply: Reply, request_wire: bytes) -> bytes:
        return _seal(self._reply_key, _mac_of(request_wire), msgspec.msgpack.encode(reply))

    def open_reply(self, wire: bytes, request_wire: bytes) -> Reply:
        """Raises Refused (size, version, form) and Unauthentic."""
        payload = _open(self._reply_key, _mac_of(request_wire), wire)
        try:
            return self._replies.decode(payload)
        except msgspec.MsgspecError as error:
            raise Refused(Reason.MALFORMED, detail=str(error)) from error


def _seal(key: bytes, context: bytes, payload: bytes) -> bytes:
    return b"".join((_VERSION, hmac.digest(key, context + _VERSION + payload, "sha256"), payload))


def _open(key: bytes, context: bytes, wire: bytes) -> bytes:
    """Return the payload, once size, version and MAC are right."""
    if len(wire) > MAX_BYTES:
        raise Refused(Reason.OVERSIZED, detail=f"{len(wire)} bytes of at most {MAX_BYTES}")
    if len(wire) < _HEAD_BYTES:
        raise Unauthentic(f"a message of {len(wire)} bytes carries no seal")
    # The version is checked first: it decides how to read the rest.
    if wire[:1] != _VERSION:
        raise Refused(Reason.VERSION, detail=f"envelope version {wire[0]}, here {VERSION}")
    payload = wire[_HEAD_BYTES:]
    if not hmac.compare_digest(_mac_of(wire), hmac.digest(key, context + _VERSION + payload, "sha256")):
        raise Unauthentic("the message is not sealed with this job's secret")
    return payload


def _mac_of(wire: bytes) -> bytes:
    return wire[len(_VERSION) : _HEAD_BYTES]
