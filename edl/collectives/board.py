"""What the members of one generation write on the board where they find each other, and how they may ask for it.

Owns: the form of requests, which keys there are, and their bounds. Does not own: connections and waiting
(`edl.collectives.rendezvous`, which also tells what Horovod asks and why). Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from edl.errors import ConfigError

HEAD_BYTES = 8192

_MEMBER = re.compile(r"[A-Za-z0-9._-]{1,200}")  # goes into a URL as it is
_SCOPE = re.compile(r"(global|local_[A-Za-z0-9._-]{1,200}?|cross_0)(_process_set_hash_[0-9a-f]{1,16})?")
_REQUEST_LINE = re.compile(rb"(GET|PUT|DELETE) /([!-.0-~]{1,300})/([!-.0-~]{1,300}) HTTP/1\.[01]")
_KEY = re.compile(r"(rank_)?(0|[1-9][0-9]{0,5})")
RANK_AND_SIZE = "rank_and_size"
_REMOVED = b"-1,-1,-1,-1,-1,-1"  # a stranger left without an answer would take itself for rank 0


class Refusal(StrEnum):
    """Why a request was not taken."""

    MALFORMED = "malformed"
    UNKNOWN = "unknown"  # a scope or key that no member of this generation uses
    OVERSIZED = "oversized"
    FULL = "full"
    SLOW = "slow"


class Refused(Exception):
    """Ends the handling of a request; never leaves the rendezvous."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.value)
        self.refusal = refusal


class Request(NamedTuple):
    """One request, its form checked and its meaning not."""

    method: str
    scope: str
    key: str
    body: bytes


class Board:
    """The keys of one generation. Pure: knows what may be written, and how much."""

    def __init__(self, members: Sequence[str]) -> None:
        strange = [name for name in members if not _MEMBER.fullmatch(name)]
        if strange or not members or len(set(members)) != len(members):
            raise ConfigError(f"members must be distinct names of letters, digits, '.', '_' and '-': {list(members)}")
        self.members = tuple(members)
        self._scopes: dict[str, dict[str, bytes]] = {}
        self._bytes = 0
        size = len(self.members)
        self.max_value = 256 * size + 1024  # gloo needs 136 per peer
        self._max_bytes = 1024 * size * size + 4 * 1024 * 1024
        self._max_scopes = 32 * (size + 2)  # the three meshes of init(), and of some thirty process sets

    def place(self, key: str) -> bytes:
        """What `rank_and_size` answers to '<member>:<local rank>'."""
        name, _, local_rank = key.rpartition(":")
        if local_rank != "0" or name not in self.members:
            return _REMOVED
        return f"{self.members.index(name)},{len(self.members)},0,1,0,1".encode()

    def get(self, scope: str, key: str) -> bytes | None:
        self._check(scope, key)
        return self._scopes.get(scope, {}).get(key)

    def put(self, scope: str, key: str, value: bytes) -> None:
        self._check(scope, key)
        if len(value) > self.max_value:
            raise Refused(Refusal.OVERSIZED)
        if scope not in self._scopes and len(self._scopes) >= self._max_scopes:
            raise Refused(Refusal.FULL)
        values = self._scopes.setdefault(scope, {})
        growth = len(value) - len(values.get(key, b""))
        if self._bytes + growth > self._max_bytes:
            raise Refused(Refusal.FULL)
        values[key] = value
        self._bytes += growth

    def finish(self, scope: str, key: str) -> None:
        """A rank is done with a scope. It says so after a barrier, when nobody needs its addresses any more."""
        self._check(scope, key)
        values = self._scopes.get(scope, {})
        for name in (key, f"rank_{key}"):
            self._bytes -= len(values.pop(name, b""))
        if not values:
            self._scopes.pop(scope, None)

    def _check(self, scope: str, key: str) -> None:
        known_scope, known_key = _SCOPE.fullmatch(scope), _KEY.fullmatch(key)
        if known_scope is None or known_key is None:
            raise Refused(Refusal.UNKNOWN)
        mesh = known_scope[1]
        ranks = len(self.members) if mesh == "global" else 1
        if int(known_key[2]) >= ranks or (mesh.startswith("local_") and mesh[6:] not in self.members):
            raise Refused(Refusal.UNKNOWN)


def parse(received: bytearray, max_body: int) -> Request | None:
    """The request once it is complete. Raises Refused."""
    end = received.find(b"\r\n\r\n")
    if end < 0:
        if len(received) > HEAD_BYTES:
            raise Refused(Refusal.OVERSIZED)
        return None
    line, *headers = bytes(received[:end]).split(b"\r\n")
    parsed = _REQUEST_LINE.fullmatch(line)
    if parsed is None:
        raise Refused(Refusal.MALFORMED)
    length = _content_length(headers)
    if length > max_body:
        raise Refused(Refusal.OVERSIZED)
    body = bytes(received[end + 4 : end + 4 + length])
    if len(body) < length:
        return None
    method, scope, key = (part.decode("ascii") for part in parsed.groups())
    return Request(method, scope, key, body)


def _content_length(headers: Sequence[bytes]) -> int:
    for header in headers:
        name, _, value = header.partition(b":")
        if name.strip().lower() == b"content-length":
            if not re.fullmatch(rb"[0-9]{1,9}", value.strip()):
                raise Refused(Refusal.MALFORMED)
            return int(value)
    return 0
