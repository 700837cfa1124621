"""The keys that one trainer writes and reads to find the other members of its ring, and the form of its requests.

Owns: the form of its requests, which keys there are, and their bounds. Does not own: connections and waiting
(`edl.collectives.rendezvous`, which also tells what Horovod asks and why), nor how addresses travel between workers
(`edl.daemon.address_book`). Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from edl.collectives import gloo_addresses, torch_addresses
from edl.errors import ConfigError

HEAD_BYTES = 8192
RANK_AND_SIZE = "rank_and_size"
TORCH = "torch"  # the mesh of `edl.torch.process_groups`; of a worker's further processes: torch.1, ...
SCOPES = 12  # the three meshes of init(), of all ranks and of the process set of all, and room to spare

_MEMBER = re.compile(r"[A-Za-z0-9._-]{1,200}")  # goes into a URL as it is
_MESH = re.compile(rf"global(_process_set_hash_[0-9a-f]{{1,16}})?|{TORCH}(\.[1-9])?")
_TRIVIAL = re.compile(r"(local_[A-Za-z0-9._-]{1,200}?|cross_0)(_process_set_hash_[0-9a-f]{1,16})?")
_REQUEST_LINE = re.compile(rb"(GET|PUT|DELETE) /([!-.0-~]{1,100})/([!-.0-~]{1,300})/([!-.0-~]{1,300}) HTTP/1\.[01]")
_KEY = re.compile(r"(rank_)?(0|[1-9][0-9]{0,5})")
_REMOVED = b"-1,-1,-1,-1,-1,-1"  # a trainer without an answer would take itself for rank 0


def mesh_of(limb: int) -> str:
    """Return the mesh of torch's groups in which this process of each worker meets those of the others."""
    return f"{TORCH}.{limb}" if limb else TORCH


def is_of_torch(mesh: str) -> bool:
    """Tell whether a mesh is one of torch's groups; all others are Horovod's."""
    return mesh.partition(".")[0] == TORCH


class Refusal(StrEnum):
    MALFORMED = "malformed"
    STRANGER = "stranger"  # without the token
    UNKNOWN = "unknown"  # a scope or key that this member does not use
    CONFLICT = "conflict"  # another value for a key that is taken
    OVERSIZED = "oversized"
    FULL = "full"
    SLOW = "slow"


class RequestRefused(Exception):
    """Ends the handling of a request; never leaves the rendezvous."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.value)
        self.refusal = refusal


class BoardRequest(NamedTuple):
    """A well-formed request, whose meaning is not checked."""

    method: str
    token: str
    scope: str
    key: str
    body: bytes


class Rows(Protocol):
    """The form in which members of a mesh write their addresses."""

    def split(self, row: bytes, rank: int, size: int) -> list[bytes]:
        """Return a parcel for each rank, empty for `rank` itself. Raises ValueError."""

    def laid_out(self, parcel: bytes, sender: int, rank: int, size: int) -> bytes:
        """Return a row of `sender` as its reader, `rank`, expects it."""


class _Scope:
    def __init__(self, rank: int, size: int, rows: Rows) -> None:
        self.rank = rank
        self.size = size
        self.rows = rows
        self.written: dict[str, bytes] = {}  # by this member
        self.parcels: dict[int, bytes] = {}  # from the others
        self.finished = False


class RendezvousBoard:
    """Keys of one member in one generation. Pure: knows which may be written, and how large their values may be."""

    def __init__(self, worker: str, rank: int, size: int) -> None:
        if not _MEMBER.fullmatch(worker):
            raise ConfigError(f"a worker's id has letters, digits, '.', '_' and '-' only, and at most 200: {worker!r}")
        if not 0 <= rank < size:
            raise ConfigError(f"a ring of {size} has no rank {rank}")
        self._worker = worker
        self._rank = rank
        self._size = size
        self._scopes: dict[str, _Scope] = {}
        self.max_value = 256 * size + 1024  # gloo needs 136 per peer

    def place(self, key: str) -> bytes:
        """Answer a `rank_and_size` request for '<worker>:<local rank>'."""
        if key != f"{self._worker}:0":
            return _REMOVED
        return f"{self._rank},{self._size},0,1,0,1".encode()

    def has_others(self, scope: str) -> bool:
        """Tell whether this member forms that mesh with others."""
        return self._size_of(scope) > 1

    def get(self, scope: str, key: str) -> bytes | None:
        """Return the value; None if there is none, or not yet."""
        mesh, rank = self._find(scope, key)
        if mesh is None:
            return None
        if key in mesh.written:
            return mesh.written[key]
        parcel = mesh.parcels.get(rank) if key == str(rank) else None
        return None if parcel is None else mesh.rows.laid_out(parcel, rank, mesh.rank, mesh.size)

    def put(self, scope: str, key: str, value: bytes) -> None:
        """Write a key once, as others may have read it; the same value again does no harm. Raises RequestRefused."""
        if len(value) > self.max_value:
            raise RequestRefused(Refusal.OVERSIZED)
        mesh, rank = self._find(scope, key)
        if mesh is None:
            mesh = self._begin(scope)
        if rank != mesh.rank:
            raise RequestRefused(Refusal.UNKNOWN)
        if mesh.finished or mesh.written.setdefault(key, value) != value:
            raise RequestRefused(Refusal.CONFLICT)

    def parcels(self, scope: str) -> Sequence[bytes] | None:
        """Return a parcel for each rank of a mesh, once this member has written its row. Raises RequestRefused."""
        mesh = self._scopes.get(scope)
        row = mesh.written.get(str(mesh.rank)) if mesh is not None else None
        if mesh is None or row is None or mesh.size == 1:
            return None
        try:
            return mesh.rows.split(row, mesh.rank, mesh.size)
        except ValueError as error:
            raise RequestRefused(Refusal.MALFORMED) from error

    def deliver(self, scope: str, parcels: Mapping[int, bytes]) -> None:
        """Take the parcels that other members, by rank, sent to this one."""
        mesh = self._scopes.get(scope)
        if mesh is not None and not mesh.finished:
            mesh.parcels.update(parcels)

    def finish(self, scope: str, key: str) -> None:
        """Forget a mesh. Horovod asks for it after a barrier, when no member needs addresses any more."""
        mesh, rank = self._find(scope, key)
        if mesh is None or rank != mesh.rank:
            raise RequestRefused(Refusal.UNKNOWN)
        mesh.finished = True
        mesh.written.clear()
        mesh.parcels.clear()

    def _find(self, scope: str, key: str) -> tuple[_Scope | None, int]:
        """Return the mesh, if anything was written there, and the rank in `key`. Raises RequestRefused."""
        known_key = _KEY.fullmatch(key)
        if known_key is None or int(known_key[2]) >= self._size_of(scope):
            raise RequestRefused(Refusal.UNKNOWN)
        return self._scopes.get(scope), int(known_key[2])

    def _begin(self, scope: str) -> _Scope:
        if len(self._scopes) >= SCOPES:
            raise RequestRefused(Refusal.FULL)
        size = self._size_of(scope)
        rows: Rows = torch_addresses if is_of_torch(scope) else gloo_addresses
        mesh = self._scopes[scope] = _Scope(self._rank if size > 1 else 0, size, rows)
        return mesh

    def _size_of(self, scope: str) -> int:
        """Return the number of members of a mesh; 0 for an unknown name."""
        if _MESH.fullmatch(scope):
            return self._size
        trivial = _TRIVIAL.fullmatch(scope)
        return 1 if trivial is not None and trivial[1] in (f"local_{self._worker}", "cross_0") else 0


def parse(received: bytearray, max_body: int) -> BoardRequest | None:
    """Return the request once it is complete. Raises RequestRefused."""
    end = received.find(b"\r\n\r\n")
    if end < 0:
        if len(received) > HEAD_BYTES:
            raise RequestRefused(Refusal.OVERSIZED)
        return None
    line, *headers = bytes(received[:end]).split(b"\r\n")
    parsed = _REQUEST_LINE.fullmatch(line)
    if parsed is None:
        raise RequestRefused(Refusal.MALFORMED)
    length = _content_length(headers)
    if length > max_body:
        raise RequestRefused(Refusal.OVERSIZED)
    body = bytes(received[end + 4 : end + 4 + length])
    if len(body) < length:
        return None
    method, token, scope, key = (part.decode("ascii") for part in parsed.groups())
    return BoardRequest(method, token, scope, key, body)


def _content_length(headers: Sequence[bytes]) -> int:
    for header in headers:
        name, _, value = header.partition(b":")
        if name.strip().lower() == b"content-length":
            if not re.fullmatch(rb"[0-9]{1,9}", value.strip()):
                raise RequestRefused(Refusal.MALFORMED)
            return int(value)
    return 0
