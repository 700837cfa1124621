"""A bounded HTTP server on this host: starlette on uvicorn. Only processes that serve something import it.

An idle connection makes room for one that asks for something, and a refused caller loses its connection: so a caller
without a token keeps no connection open, and cannot keep out callers that have one.

Owns: listening, and how many requests are answered at a time. Does not own: the answers, nor who may get them.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from edl.errors import ConfigError
from edl.host.network import family_of

CONNECTIONS: Final = 128  # beyond this number, callers get the answer that the server is too busy
MOST_CONNECTIONS: Final = 2 * CONNECTIONS  # beyond this number, connections are closed without an answer
MOST_IDLE: Final = CONNECTIONS // 2  # idle connections; beyond this number, the oldest are closed
REFUSED: Final = 400  # after an answer of this status or above the connection is closed
ASK_S: Final = 10.0  # for a connection to ask for something
HEAD_BYTES: Final = 16_384


async def serve(app: Any, ear: socket.socket, certificate: str = "", key: str = "") -> None:
    """Serve `app` until cancelled. `certificate` and `key` are PEM files; without them it is plain HTTP."""
    config = uvicorn.Config(
        _closing_refused(app),
        log_config=None,
        log_level="error",  # a line for each wrong request would let strangers fill a log
        access_log=False,
        lifespan="off",
        server_header=False,
        http=_Bounded,
        ws="none",
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=HEAD_BYTES,
        ssl_certfile=certificate or None,
        ssl_keyfile=key or None,
    )
    server = _Quiet(config)
    serving = asyncio.create_task(server.serve([ear]))
    try:
        await asyncio.shield(serving)
    finally:
        server.should_exit = True
        with contextlib.suppress(asyncio.CancelledError):
            await serving


def _closing_refused(app: Any) -> Any:
    async def answered(scope: Any, receive: Any, send: Any) -> None:
        async def sent(message: Any) -> None:
            if message["type"] == "http.response.start" and message["status"] >= REFUSED:
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
            await send(message)

        await app(scope, receive, sent)

    return answered


class _Bounded(H11Protocol):
    """A connection with limits from its beginning: uvicorn's own limits begin with the first answer."""

    proven = False  # the caller has got an answer that was no refusal

    @property
    def idle(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle  # none before the first request
        return cycle is None or cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since = self.loop.time()
        self._make_room()
        if len(self.connections) > MOST_CONNECTIONS:
            transport.abort()
        else:
            self._expect(None)

    def _make_room(self) -> None:
        """Close the oldest idle connection if there are too many; first those whose callers have got no answer but
        refusals.
        """
        idle = [one for one in self.connections if isinstance(one, _Bounded) and one is not self and one.idle]
        if len(idle) >= MOST_IDLE:
            oldest = min(idle, key=lambda one: (one.proven, one._since))
            self.connections.discard(oldest)
            oldest.transport.abort()

    def on_response_complete(self) -> None:
        answered = self.cycle
        self.proven = not self.transport.is_closing()
        super().on_response_complete()
        self._expect(answered)

    def _expect(self, before: RequestResponseCycle | None) -> None:
        """Close the connection unless a request after `before` arrives within `ASK_S`; it counts once its head is
        complete.
        """

        def look() -> None:
            if self.cycle is before and not self.transport.is_closing():
                self.transport.abort()

        self.loop.call_later(ASK_S, look)


class _Handshake(asyncio.Protocol):
    """A connection during its TLS handshake, which may last `ASK_S` like a request: asyncio's own limit is a minute,
    and it does not limit the number of handshakes.
    """

    def __init__(self, answering: asyncio.Protocol, tls: ssl.SSLContext, waiting: dict[_Handshake, None]) -> None:
        """Keep `waiting`, the handshakes of all connections, oldest first."""
        self._answering, self._tls, self._waiting = answering, tls, waiting
        self.transport: asyncio.Transport
        self._early = b""  # data that came after the handshake, before this end knew that it was over
        self._lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()  # what comes is the handshake's
        if len(self._waiting) >= MOST_IDLE:
            next(iter(self._waiting)).transport.abort()
        self._waiting[self] = None
        self.transport = transport
        self._task = asyncio.ensure_future(self._shake_hands())

    async def _shake_hands(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            secured = await loop.start_tls(
                self.transport, self, self._tls, server_side=True, ssl_handshake_timeout=ASK_S
            )
        except OSError:
            self.transport.abort()
        else:
            if secured is not None and not self._lost:
                secured.set_protocol(self._answering)
                self._answering.connection_made(secured)
                if self._early:
                    self._answering.data_received(self._early)
        finally:
            self._waiting.pop(self, None)

    def data_received(self, data: bytes) -> None:
        self._early += data

    def connection_lost(self, _: Exception | None) -> None:
        self._lost = True
        self._waiting.pop(self, None)


class _Quiet(uvicorn.Server):
    """A uvicorn server that leaves signals to the command that runs it."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        config = self.config
        await self.lifespan.startup()

        def answering() -> asyncio.Protocol:
            made: asyncio.Protocol = config.http_protocol_class(  # type: ignore[call-arg]
                config=config, server_state=self.server_state, app_state=self.lifespan.state
            )
            return made if config.ssl is None else _Handshake(made, config.ssl, waiting)

        waiting: dict[_Handshake, None] = {}
        loop, self.servers = asyncio.get_running_loop(), []
        for ear in sockets or ():
            self.servers.append(await loop.create_server(answering, sock=ear, backlog=config.backlog))
        self.started = True

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


def listen(address: str, port: int, flag: str = "--port") -> socket.socket:
    """Open a listening socket; `flag` names the option in errors. Raises ConfigError."""
    try:
        return socket.create_server((address, port), family=family_of(address), backlog=CONNECTIONS)
    except OSError as error:
        raise ConfigError(
            f"{flag} {port}: cannot listen at {address}: {error.strerror}; choose another, or 0 for any"
        ) from None
