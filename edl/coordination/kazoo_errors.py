"""Translation of kazoo's errors into the port's errors.

Owns: which of them mean no answer, a refusal, or no access. Does not own: what a caller does about it.
"""

from __future__ import annotations

from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    RequestTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionClosedRequireSaslError,
    SessionExpiredError,
    SessionMovedError,
    ThrottledOpError,
)
from kazoo.handlers.threading import KazooTimeoutError

from edl.coordination.store import (
    AccessDenied,
    NodeExists,
    NoNode,
    NotEmpty,
    Op,
    StoreRefused,
    VersionConflict,
    parent_of,
)
from edl.errors import EdlError, PeerError, StoreUnavailable, UsageError

KAZOO_ERRORS = (KazooException, KazooTimeoutError)
"""All errors with which a request of kazoo's can end."""

_REFUSALS: dict[type[KazooException], type[StoreRefused]] = {
    NodeExistsError: NodeExists,
    NoNodeError: NoNode,
    BadVersionError: VersionConflict,
    NotEmptyError: NotEmpty,
}

_NO_ACCESS = (NoAuthError, AuthFailedError, SessionClosedRequireSaslError)

# The operation may have been carried out, or it was not carried out and may be retried.
_NO_ANSWER = (
    ConnectionLoss,
    KazooTimeoutError,
    OperationTimeoutError,
    RequestTimeoutError,
    SessionExpiredError,  # and ConnectionClosedError, a subclass
    SessionMovedError,
    ThrottledOpError,
)


def translate(error: Exception, path: str, op: Op | None = None) -> EdlError:
    """Return the port's error for an error of kazoo's."""
    for theirs, ours in _REFUSALS.items():
        if isinstance(error, theirs):
            return ours(path, op)
    if isinstance(error, _NO_ACCESS):
        return AccessDenied(path)
    if isinstance(error, NoChildrenForEphemeralsError):
        return UsageError(f"{parent_of(path)} is ephemeral and can have no children")
    if isinstance(error, _NO_ANSWER):
        return StoreUnavailable(f"the connection to the coordinator broke ({type(error).__name__})")
    return PeerError(f"the coordinator fails at {path}: {error!r}")


def is_culprit(result: object) -> bool:
    """Tell whether this result made its transaction fail; kazoo returns such errors rather than raise them."""
    return isinstance(result, Exception) and not isinstance(result, RolledBackError | RuntimeInconsistency)
