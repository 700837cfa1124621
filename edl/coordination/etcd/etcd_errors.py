"""Translation of etcd's errors into the port's errors. Pure.

Owns: which of them mean no answer, no access, or a token to renew. Does not own: what a caller does then.
"""

from __future__ import annotations

import grpc

from edl.coordination.store import AccessDenied
from edl.errors import EdlError, PeerError, StoreUnavailable

_NO_ACCESS = ("permission denied", "authentication failed", "user name is empty", "user name not found")
_OLD_TOKEN = ("invalid auth token", "auth store is old", "revision in header is old")
_NO_AUTH = ("authentication is not enabled",)
_GONE = ("requested lease not found",)

_REMEDIES = {
    "database space exceeded": "its database is full: compact and defragment it, clear the alarm with `etcdctl alarm "
    "disarm`, and start it with --auto-compaction-retention=5m (docs/coordination.md)",
    "too many operations": "it allows too few operations in a transaction: start it without --max-txn-ops",
    "request is too large": "it allows too small requests: start it with --max-request-bytes=1572864 or more",
}

_NO_ANSWER = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.INTERNAL,  # the connection broke in the middle of an answer
    grpc.StatusCode.UNKNOWN,  # the server stops: "raft: stopped", "context canceled"
    grpc.StatusCode.RESOURCE_EXHAUSTED,  # too many requests
}


class TokenRefused(EdlError):
    """The token has expired or is unknown: authenticate again."""


class LeaseGone(StoreUnavailable):
    """The session has expired."""


class NoPasswords(EdlError):
    """The server has authentication switched off."""


def translate_status(code: grpc.StatusCode, details: str, path: str) -> EdlError:
    """Return the port's error for a status of gRPC."""
    for words, error in (
        (_OLD_TOKEN, TokenRefused(details)),
        (_NO_ACCESS, AccessDenied(path)),
        (_NO_AUTH, NoPasswords(details)),
        (_GONE, LeaseGone("the session with the coordinator is over")),
        *(((words,), PeerError(f"etcd refuses to write {path}: {remedy}")) for words, remedy in _REMEDIES.items()),
    ):
        if any(one in details for one in words):
            return error
    if code in _NO_ANSWER:
        return StoreUnavailable(f"the connection to the coordinator broke ({details or code.name})")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return PeerError("the coordinator is no etcd of version 3.4 or newer")
    return PeerError(f"etcd fails at {path}: {details or code.name}")
