"""What etcd refuses, in the port's words."""

from __future__ import annotations

import grpc
import pytest

from edl.coordination.etcd.etcd_connection import LeaseGone, NoPasswords, TokenRefused, translate_status
from edl.coordination.store import AccessDenied
from edl.errors import PeerError, StoreUnavailable

CODE = grpc.StatusCode


@pytest.mark.parametrize(
    ("code", "details", "error", "told"),
    [
        (CODE.UNAVAILABLE, "failed to connect", StoreUnavailable, "failed to connect"),
        (CODE.UNAVAILABLE, "etcdserver: leader changed", StoreUnavailable, ""),
        (CODE.DEADLINE_EXCEEDED, "", StoreUnavailable, "DEADLINE_EXCEEDED"),
        (CODE.UNKNOWN, "raft: stopped", StoreUnavailable, ""),
        (CODE.RESOURCE_EXHAUSTED, "etcdserver: too many requests", StoreUnavailable, ""),
        (CODE.NOT_FOUND, "etcdserver: requested lease not found", LeaseGone, "is over"),
        (CODE.UNAUTHENTICATED, "etcdserver: invalid auth token", TokenRefused, ""),
        (CODE.INVALID_ARGUMENT, "etcdserver: revision of auth store is old", TokenRefused, ""),
        (CODE.UNKNOWN, "auth: revision in header is old", TokenRefused, ""),
        (CODE.FAILED_PRECONDITION, "etcdserver: authentication is not enabled", NoPasswords, ""),
        (CODE.INVALID_ARGUMENT, "etcdserver: user name is empty", AccessDenied, "EDL_COORDINATOR_AUTH"),
        (CODE.INVALID_ARGUMENT, "etcdserver: authentication failed, invalid user ID or password", AccessDenied, "/a"),
        (CODE.PERMISSION_DENIED, "etcdserver: permission denied", AccessDenied, "/a"),
        (
            CODE.RESOURCE_EXHAUSTED,
            "etcdserver: mvcc: database space exceeded",
            PeerError,
            "--auto-compaction-retention",
        ),
        (CODE.INVALID_ARGUMENT, "etcdserver: too many operations in txn request", PeerError, "--max-txn-ops"),
        (CODE.INVALID_ARGUMENT, "etcdserver: request is too large", PeerError, "--max-request-bytes"),
        (CODE.UNIMPLEMENTED, "unknown service", PeerError, "3.4 or newer"),
        (CODE.INVALID_ARGUMENT, "etcdserver: something new", PeerError, "something new"),
    ],
)
def test_each_refusal_says_what_it_means(code, details, error, told):
    found = translate_status(code, details, "/a")
    assert type(found) is error
    assert told in str(found)
    assert "\n" not in str(found)
