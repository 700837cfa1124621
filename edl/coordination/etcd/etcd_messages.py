"""etcd's messages and methods, as far as the store needs them. Numbers and names are those of etcd's rpc.proto,
kv.proto and auth.proto (etcd 3.4; equal in 3.5 and 3.6).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from edl.coordination.etcd.protobuf import numbered

Q = TypeVar("Q")
A = TypeVar("A")

EQUAL: Final = 0  # how a comparison compares
GREATER: Final = 1

CREATE: Final = 1  # what it compares
MOD: Final = 2

DELETED: Final = 1  # type of an event

NO_PUTS: Final = 0  # filter of a watch

READ_WRITE: Final = 2  # what a role may do


@dataclass(frozen=True, slots=True)
class ResponseHeader:
    cluster_id: int = numbered(1, 0)
    member_id: int = numbered(2, 0)
    revision: int = numbered(3, 0)
    raft_term: int = numbered(4, 0)


@dataclass(frozen=True, slots=True)
class KeyValue:
    key: bytes = numbered(1, b"")
    create_revision: int = numbered(2, 0)
    mod_revision: int = numbered(3, 0)
    version: int = numbered(4, 0)
    value: bytes = numbered(5, b"")
    lease: int = numbered(6, 0)


@dataclass(frozen=True, slots=True)
class RangeRequest:
    key: bytes = numbered(1, b"")
    range_end: bytes = numbered(2, b"")
    limit: int = numbered(3, 0)
    revision: int = numbered(4, 0)
    keys_only: bool = numbered(8, False)
    count_only: bool = numbered(9, False)


@dataclass(frozen=True, slots=True)
class RangeResponse:
    header: ResponseHeader = numbered(1, ResponseHeader())
    kvs: tuple[KeyValue, ...] = numbered(2, ())
    more: bool = numbered(3, False)
    count: int = numbered(4, 0)


@dataclass(frozen=True, slots=True)
class PutRequest:
    key: bytes = numbered(1, b"")
    value: bytes = numbered(2, b"")
    lease: int = numbered(3, 0)
    ignore_value: bool = numbered(5, False)


@dataclass(frozen=True, slots=True)
class DeleteRangeRequest:
    key: bytes = numbered(1, b"")
    range_end: bytes = numbered(2, b"")


@dataclass(frozen=True, slots=True)
class RequestOp:
    """etcd's RequestOp: exactly one of these fields is set."""

    request_range: RangeRequest | None = numbered(1)
    request_put: PutRequest | None = numbered(2)
    request_delete_range: DeleteRangeRequest | None = numbered(3)


@dataclass(frozen=True, slots=True)
class ResponseOp:
    """etcd's ResponseOp; the store ignores the answers to puts and removals."""

    response_range: RangeResponse | None = numbered(1)


@dataclass(frozen=True, slots=True)
class Compare:
    result: int = numbered(1, EQUAL)
    target: int = numbered(2, 0)
    key: bytes = numbered(3, b"")
    create_revision: int = numbered(5, 0)
    mod_revision: int = numbered(6, 0)


@dataclass(frozen=True, slots=True)
class TxnRequest:
    compare: tuple[Compare, ...] = numbered(1, ())
    success: tuple[RequestOp, ...] = numbered(2, ())
    failure: tuple[RequestOp, ...] = numbered(3, ())


@dataclass(frozen=True, slots=True)
class TxnResponse:
    header: ResponseHeader = numbered(1, ResponseHeader())
    succeeded: bool = numbered(2, False)
    responses: tuple[ResponseOp, ...] = numbered(3, ())


@dataclass(frozen=True, slots=True)
class WatchCreateRequest:
    key: bytes = numbered(1, b"")
    range_end: bytes = numbered(2, b"")
    start_revision: int = numbered(3, 0)
    filters: tuple[int, ...] = numbered(5, ())
    watch_id: int = numbered(7, 0)


@dataclass(frozen=True, slots=True)
class WatchCancelRequest:
    watch_id: int = numbered(1, 0)


@dataclass(frozen=True, slots=True)
class WatchRequest:
    create_request: WatchCreateRequest | None = numbered(1)
    cancel_request: WatchCancelRequest | None = numbered(2)


@dataclass(frozen=True, slots=True)
class WatchEvent:
    type: int = numbered(1, 0)
    kv: KeyValue = numbered(2, KeyValue())


@dataclass(frozen=True, slots=True)
class WatchResponse:
    header: ResponseHeader = numbered(1, ResponseHeader())
    watch_id: int = numbered(2, 0)
    created: bool = numbered(3, False)
    canceled: bool = numbered(4, False)
    compact_revision: int = numbered(5, 0)
    cancel_reason: str = numbered(6, "")
    events: tuple[WatchEvent, ...] = numbered(11, ())


@dataclass(frozen=True, slots=True)
class LeaseGrantRequest:
    ttl: int = numbered(1, 0)
    id: int = numbered(2, 0)


@dataclass(frozen=True, slots=True)
class LeaseGrantResponse:
    header: ResponseHeader = numbered(1, ResponseHeader())
    id: int = numbered(2, 0)
    ttl: int = numbered(3, 0)
    error: str = numbered(4, "")


@dataclass(frozen=True, slots=True)
class LeaseRevokeRequest:
    id: int = numbered(1, 0)


@dataclass(frozen=True, slots=True)
class LeaseKeepAliveRequest:
    id: int = numbered(1, 0)


@dataclass(frozen=True, slots=True)
class LeaseKeepAliveResponse:
    header: ResponseHeader = numbered(1, ResponseHeader())
    id: int = numbered(2, 0)
    ttl: int = numbered(3, 0)


@dataclass(frozen=True, slots=True)
class AuthenticateRequest:
    name: str = numbered(1, "")
    password: str = numbered(2, "")


@dataclass(frozen=True, slots=True)
class AuthenticateResponse:
    token: str = numbered(2, "")


@dataclass(frozen=True, slots=True)
class Empty:
    """A request without fields, or an answer whose fields the store ignores."""


@dataclass(frozen=True, slots=True)
class StatusResponse:
    version: str = numbered(2, "")
    leader: int = numbered(4, 0)


@dataclass(frozen=True, slots=True)
class UserAddRequest:
    name: str = numbered(1, "")
    password: str = numbered(2, "")


@dataclass(frozen=True, slots=True)
class UserGrantRoleRequest:
    user: str = numbered(1, "")
    role: str = numbered(2, "")


@dataclass(frozen=True, slots=True)
class RoleAddRequest:
    name: str = numbered(1, "")


@dataclass(frozen=True, slots=True)
class Permission:
    kind: int = numbered(1, 0)
    key: bytes = numbered(2, b"")
    range_end: bytes = numbered(3, b"")


@dataclass(frozen=True, slots=True)
class RoleGrantPermissionRequest:
    name: str = numbered(1, "")
    permission: Permission = numbered(2, Permission())


@dataclass(frozen=True, slots=True)
class Method(Generic[Q, A]):
    """A call of etcd, with the types of its request and its answer."""

    path: str
    request: type[Q]
    answer: type[A]


def _method(service: str, name: str, request: type[Q], answer: type[A]) -> Method[Q, A]:
    return Method(f"/etcdserverpb.{service}/{name}", request, answer)


RANGE = _method("KV", "Range", RangeRequest, RangeResponse)
TXN = _method("KV", "Txn", TxnRequest, TxnResponse)
WATCH = _method("Watch", "Watch", WatchRequest, WatchResponse)
LEASE_GRANT = _method("Lease", "LeaseGrant", LeaseGrantRequest, LeaseGrantResponse)
LEASE_REVOKE = _method("Lease", "LeaseRevoke", LeaseRevokeRequest, Empty)
LEASE_KEEP_ALIVE = _method("Lease", "LeaseKeepAlive", LeaseKeepAliveRequest, LeaseKeepAliveResponse)
AUTHENTICATE = _method("Auth", "Authenticate", AuthenticateRequest, AuthenticateResponse)
STATUS = _method("Maintenance", "Status", Empty, StatusResponse)

USER_ADD = _method("Auth", "UserAdd", UserAddRequest, Empty)
USER_GRANT = _method("Auth", "UserGrantRole", UserGrantRoleRequest, Empty)
ROLE_ADD = _method("Auth", "RoleAdd", RoleAddRequest, Empty)
ROLE_GRANT = _method("Auth", "RoleGrantPermission", RoleGrantPermissionRequest, Empty)
AUTH_ENABLE = _method("Auth", "AuthEnable", Empty, Empty)
