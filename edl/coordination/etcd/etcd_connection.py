"""A connection to one etcd server: calls and streams, TLS, and the token that a password is exchanged for.

Owns: gRPC's settings, the translation of etcd's errors to the port's, and renewing the token. Does not own: the choice
of server (`etcd_session`), nor the messages.
"""

from __future__ import annotations

import asyncio
import functools
import socket
import ssl
from pathlib import Path
from typing import Any, TypeVar, cast

import grpc
import grpc.aio

from edl.coordination.coordinator_settings import Coordinator, Tls
from edl.coordination.dialing import run_in_thread, tls_context
from edl.coordination.etcd.etcd_messages import AUTHENTICATE, AuthenticateRequest, Method
from edl.coordination.etcd.protobuf import decode, encode
from edl.coordination.store import AccessDenied
from edl.errors import EdlError, PeerError, StoreUnavailable

Q = TypeVar("Q")
A = TypeVar("A")

Metadata = tuple[tuple[str, str], ...]

_MAX_BYTES = 64 * 1024 * 1024
"""Largest answer: a list of many children, or a few large nodes together, exceed gRPC's default of 4 MiB."""

_OPTIONS: list[tuple[str, int | str]] = [
    ("grpc.max_receive_message_length", _MAX_BYTES),
    ("grpc.max_send_message_length", _MAX_BYTES),
    ("grpc.enable_http_proxy", 0),  # else http_proxy of the environment sends the job's calls to a stranger
    ("grpc.enable_retries", 0),  # an unanswered write may have happened: the caller checks that
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.use_local_subchannel_pool", 1),  # a new connection begins without the back-off of the last one
    ("grpc.http2.bdp_probe", 0),
]


class EtcdConnection:
    """The caller bounds the time of every call."""

    def __init__(self, address: tuple[str, int], coordinator: Coordinator, *, patience_s: float) -> None:
        self._host, self._port = address
        self._coordinator = coordinator
        self._patience_s = patience_s
        self._metadata: Metadata = ()
        self._channel: grpc.aio.Channel | None = None
        self._authenticating = asyncio.Lock()

    @property
    def known(self) -> bool:
        """Return True if the server has accepted the password."""
        return bool(self._metadata)

    async def open(self) -> None:
        """Raises StoreUnavailable, and AccessDenied if the server does not accept the password."""
        target = f"[{self._host}]:{self._port}" if ":" in self._host else f"{self._host}:{self._port}"
        if self._host.startswith("/"):
            target = f"unix:{self._host}"
        tls = self._coordinator.tls
        if tls is None:
            self._channel = grpc.aio.insecure_channel(target, options=_OPTIONS)
        else:
            options = [*_OPTIONS, *await self._names_it_shows(tls)]
            self._channel = grpc.aio.secure_channel(target, _credentials(tls), options=options)
        await self._authenticate(self._metadata)

    async def call(self, method: Method[Q, A], request: Q, *, timeout_s: float, path: str = "/") -> A:
        """Renew an expired token and retry once. Raises the port's errors."""
        used = self._metadata
        try:
            return await self._once(method, request, timeout_s, path, used)
        except TokenRefused:
            await self._authenticate(used)
        try:
            return await self._once(method, request, timeout_s, path, self._metadata)
        except TokenRefused as error:
            raise StoreUnavailable("the coordinator takes no token of its own making") from error

    def stream(self, method: Method[Q, A]) -> Any:
        """Begin a call in both directions; `received` reads from it."""
        return self._opened().stream_stream(
            method.path, request_serializer=encode, response_deserializer=functools.partial(decode, method.answer)
        )(metadata=self._metadata)

    async def close(self) -> None:
        """Calls in flight end as if the connection had broken."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def _once(self, method: Method[Q, A], request: Q, timeout_s: float, path: str, metadata: Metadata) -> A:
        multi = self._opened().unary_unary(
            method.path, request_serializer=encode, response_deserializer=functools.partial(decode, method.answer)
        )
        try:
            return cast("A", await multi(request, timeout=timeout_s, metadata=metadata))
        except grpc.aio.AioRpcError as error:
            raise translate_status(error.code(), error.details() or "", path) from error
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            raise StoreUnavailable("the connection to the coordinator was given up") from error

    async def _authenticate(self, used: Metadata) -> None:
        """Get a new token, once for all calls that were refused with the token `used`.

        The old token stays until the new one is there: a call that begins meanwhile is refused and waits, too. A call
        without a token would count as a stranger's.
        """
        digest = self._coordinator.digest
        if digest is None or self._coordinator.socket:  # the socket's folder lets no other user in
            return
        async with self._authenticating:
            if self._metadata != used:
                return
            try:
                asked = AuthenticateRequest(digest.user, digest.password)
                answer = await self._once(AUTHENTICATE, asked, self._patience_s, "/", ())
            except NoPasswords:
                self._metadata = ()  # any host that reaches it may write to it: docs/security.md
                return
            self._metadata = (("token", answer.token),)

    def _opened(self) -> grpc.aio.Channel:
        if self._channel is None:
            raise StoreUnavailable("not connected to the coordinator")
        return self._channel

    async def _names_it_shows(self, tls: Tls) -> list[tuple[str, str]]:
        """Return the gRPC option for `check_hostname=False`. gRPC always compares the host's name, so gRPC is given a
        name that the certificate has.
        """
        if tls.check_hostname:
            return []
        name = await run_in_thread(
            lambda: _shown_name(self._host, self._port, tls, self._patience_s), timeout_s=self._patience_s
        )
        return [] if not name else [("grpc.ssl_target_name_override", name)]


async def received(stream: Any) -> Any:
    """Return the next message of a stream. Raises StoreUnavailable at its end."""
    try:
        message = await stream.read()
    except grpc.aio.AioRpcError as error:
        raise translate_status(error.code(), error.details() or "", "/") from error
    except asyncio.CancelledError as error:
        if _is_cancelled():
            raise
        raise StoreUnavailable("the connection to the coordinator was given up") from error
    if message is grpc.aio.EOF:
        code, details = await stream.code(), await stream.details()
        raise translate_status(code, details or "the stream has ended", "/")
    return message


async def sent(stream: Any, message: object) -> None:
    """Send a message on a stream. Raises StoreUnavailable when the stream has ended."""
    try:
        await stream.write(message)
    except grpc.aio.AioRpcError as error:
        raise translate_status(error.code(), error.details() or "", "/") from error
    except asyncio.InvalidStateError as error:
        raise StoreUnavailable("the connection to the coordinator is closed") from error
    except asyncio.CancelledError as error:
        if _is_cancelled():
            raise
        raise StoreUnavailable("the connection to the coordinator was given up") from error


def _is_cancelled() -> bool:
    """Tell whether this task is cancelled: gRPC raises the same error for a call whose channel was closed."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _credentials(tls: Tls) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        Path(tls.cafile).read_bytes(),
        Path(tls.keyfile).read_bytes() if tls.keyfile else None,
        Path(tls.certfile).read_bytes() if tls.certfile else None,
    )


def _shown_name(host: str, port: int, tls: Tls, timeout_s: float) -> str:
    """Return a name in the certificate, which the authority must have signed all the same; "" without an answer."""
    try:
        with (
            socket.create_connection((host, port), timeout_s) as plain,
            tls_context(tls).wrap_socket(plain, server_hostname=host) as secure,
        ):
            certificate = secure.getpeercert() or {}
    except (OSError, ssl.SSLError):
        return ""
    shown: Any = certificate.get("subjectAltName", ())
    return next((str(name) for kind, name in shown if kind in {"DNS", "IP Address"}), "")


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
