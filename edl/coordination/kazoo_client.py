"""A kazoo client with safe settings, and the way from its threads to an event loop.

Owns: the client's settings, its connections (time-outs, TLS), what it may log, the conversion of its asynchronous
results to awaitable ones, and of its errors to the port's. Does not own: the port (`zookeeper`).
docs/decisions/kazoo.md names its traps.

kazoo's threads run no code of ours beyond `loop.call_soon_threadsafe`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from typing import Any

from kazoo.client import KazooClient, KazooState
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
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.serialization import Auth
from kazoo.retry import KazooRetry
from kazoo.security import make_digest_acl

from edl.coordination.coordinator_settings import Coordinator
from edl.coordination.dialing import RECONNECT_MAX_S, check_server, patience_s, run_in_thread, tell, tls_context
from edl.coordination.store import (
    AccessDenied,
    Link,
    NodeExists,
    NoNode,
    NotEmpty,
    Op,
    StoreRefused,
    VersionConflict,
    parent_of,
)
from edl.errors import EdlError, PeerError, StoreUnavailable, UsageError

_LINKS = {
    KazooState.CONNECTED: Link.CONNECTED,
    KazooState.SUSPENDED: Link.SUSPENDED,
    KazooState.LOST: Link.LOST,
}


def make_client(settings: Coordinator, session_timeout_s: float) -> KazooClient:
    """Return a client that is not started yet. The chroot is left to the port: kazoo would not create it."""
    acl, auth = None, []
    if settings.digest:
        user, password = settings.digest.user, settings.digest.password
        acl, auth = [make_digest_acl(user, password, all=True)], [("digest", f"{user}:{password}")]
    handler = _Handler(settings, patience_s=patience_s(session_timeout_s))
    return KazooClient(
        hosts=settings.servers,
        timeout=session_timeout_s,
        handler=handler,
        auth_data=auth,
        default_acl=acl,
        use_ssl=settings.tls is not None,
        connection_retry=KazooRetry(max_tries=-1, delay=0.05, backoff=1.5, max_delay=RECONNECT_MAX_S),
        logger=_LOG,
    )


def listen(
    client: KazooClient, loop: asyncio.AbstractEventLoop, changed: Callable[[KazooClient, Link, int], None]
) -> None:
    """Call `changed` on the loop with each new state and the session id that goes with it."""

    def listener(state: str) -> None:  # on the connection's thread, where any call to ZooKeeper would deadlock
        tell(loop, changed, client, _LINKS[state], session_of(client))

    client.add_listener(listener)


async def start(client: KazooClient, *, timeout_s: float) -> None:
    """Start the client and wait for its session. Raises TimeoutError; the client is to be stopped in any case."""
    connected = asyncio.Event()
    listen(client, asyncio.get_running_loop(), lambda _, link, __: connected.set() if link is Link.CONNECTED else None)
    client.start_async()
    async with asyncio.timeout(timeout_s):
        await connected.wait()


async def settle(result: Any) -> Any:
    """Await a result of one of kazoo's `*_async` methods; raise its exception if it has one."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def copy() -> None:
        if future.done():  # the caller has given up, or kazoo completes a result twice, as it does at close
            return
        if result.exception is not None:
            future.set_exception(result.exception)
        else:
            future.set_result(result.value)

    result.rawlink(lambda _: tell(loop, copy))
    return await future


def watcher(loop: asyncio.AbstractEventLoop, event_came: Callable[[str], None]) -> Callable[[Any], None]:
    """Make a one-time watch function for kazoo: `event_came` gets the type of the event, on the loop."""
    return lambda event: tell(loop, event_came, event.type)


def session_of(client: KazooClient) -> int:
    """Return the id of the current session, or of the last one; 0 before the first."""
    return client._session_id or 0


def abandon(client: KazooClient) -> None:
    """End the session and free the client in a thread, without waiting for it; see `stop`."""
    threading.Thread(target=_stop, args=(client,), name="stop kazoo", daemon=True).start()


async def stop(client: KazooClient, *, timeout_s: float) -> None:
    """End the session and free the client. After `timeout_s` leave that to its threads: kazoo joins them without a
    bound, and a thread may be blocked in a connect to a silent host.
    """
    await run_in_thread(lambda: _stop(client), timeout_s=timeout_s)


def _stop(client: KazooClient) -> None:
    with contextlib.suppress(KazooException, OSError, RuntimeError):
        client.stop()
        client.close()


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """A handler that connects with edl's own TLS context and time-outs.

    kazoo would also trust every authority of the system, leave the host name unchecked by default, and wait for a
    silent host as long as the session lasts, so that the session is over before the next host is tried. A server that
    is just starting is silent in that way: it accepts connections before it can answer them.
    """

    def __init__(self, settings: Coordinator, *, patience_s: float) -> None:
        super().__init__()
        self._context = tls_context(settings.tls) if settings.tls else None
        self._user = settings.user
        self._patience_s = patience_s

    def select(self, reads: Sequence[Any], writes: Sequence[Any], others: Sequence[Any], timeout: float) -> Any:
        """Wait as kazoo does, with two differences.

        The wait for a due answer (to the greeting, or the rest of an answer) is shorter. And data that TLS has already
        read from the network end the wait at once: several answers may come in one record, and kazoo would otherwise
        see the second only when more data arrive, or at its ping.
        """
        held = [connection for connection in reads if isinstance(connection, ssl.SSLSocket) and connection.pending()]
        if held:
            readable, writable, wrong = super().select(reads, writes, others, 0)
            return held + [connection for connection in readable if connection not in held], writable, wrong
        due = len(reads) == 1 and not writes  # when idle, kazoo also waits for requests of ours
        return super().select(reads, writes, others, min(timeout, self._patience_s) if due else timeout)

    def create_connection(self, address: tuple[str, int], hostname: str | None = None, **_: object) -> socket.socket:
        connection = socket.create_connection(address, self._patience_s)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._user is not None:
                check_server(connection, self._user, self._patience_s)
            if self._context is not None:
                connection = self._context.wrap_socket(connection, server_hostname=hostname)
        except OSError:
            connection.close()
            raise
        return connection


class _Discreet(logging.Filter):
    """A filter of kazoo's log lines.

    At DEBUG kazoo logs the credentials that it sends, and below that the session's password. At WARNING it logs each
    failed attempt to connect, many in a second, which the port reports once in its own words.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno == logging.WARNING:
            record.levelno, record.levelname = logging.INFO, logging.getLevelName(logging.INFO)
        arguments = record.args if isinstance(record.args, tuple) else ()
        secret = record.levelno < logging.DEBUG or any(isinstance(argument, Auth) for argument in arguments)
        return _LOG.isEnabledFor(record.levelno) and not secret


_LOG = logging.getLogger("edl.coordination.kazoo")
_LOG.addFilter(_Discreet())


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
