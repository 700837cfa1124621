"""Connect daemons and the leader over gRPC: one generic unary method carries sealed bytes, so no protobuf is needed.

Owns: channels, servers and their limits. Does not own: the meaning of the bytes (`edl.transport.service`).
"""

from __future__ import annotations

import asyncio
from types import UnionType
from typing import Any, NoReturn, TypeVar, overload

import grpc
import grpc.aio
import msgspec

from edl.errors import ConfigError
from edl.transport.call_errors import DeadlineExceeded, Reason, Refusals, Refused, Unauthentic, Unreachable
from edl.transport.seal import MAX_BYTES
from edl.transport.service import Call, Handler, Service, Speaker, being_cancelled, unproven

__all__ = [
    "Call", "Client", "DeadlineExceeded", "Reason", "Refusals", "Refused", "Server", "Unauthentic", "Unreachable"
]  # fmt: skip

R = TypeVar("R")

SERVICE = "edl.Job"
METHOD = "Call"
CALLS_AT_ONCE = 8192  # a thousand daemons with a long poll, a report and room to spare
CALLS_PER_CONNECTION = 64
STOP_GRACE_S = 0.5

_FRAMING_BYTES = 4096  # so that a message slightly too large is refused here, and counted
_BOTH = [
    ("grpc.max_receive_message_length", MAX_BYTES + _FRAMING_BYTES),
    ("grpc.max_send_message_length", MAX_BYTES + _FRAMING_BYTES),
    ("grpc.http2.bdp_probe", 0),  # a ping after each message, to size windows for bulk: a sixth of a call's CPU time
]
_SERVER_OPTIONS = [
    *_BOTH,
    ("grpc.so_reuseport", 0),  # two leaders must never share a port unknowingly
    ("grpc.max_concurrent_streams", CALLS_PER_CONNECTION),
    # Calls that have come and were not taken yet. From 1,000 on, gRPC's default cancels some, and with them a worker's
    # conversation: a leader that is busy for half a second has as many, and all their callers would call anew.
    ("grpc.server.max_pending_requests", CALLS_AT_ONCE),
    ("grpc.server.max_pending_requests_hard_limit", CALLS_AT_ONCE),
    ("grpc.per_message_decompression", 0),  # no peer here compresses: a stranger's few kB would be unpacked to many MB
    ("grpc.server_handshake_timeout_ms", 10_000),  # a silent client is cut off; gRPC's default is 120 s
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
]
_CLIENT_OPTIONS = [
    *_BOTH,
    ("grpc.enable_http_proxy", 0),  # else http_proxy of the environment sends the job's calls to a stranger
    ("grpc.enable_retries", 0),  # the caller decides whether to ask again
    ("grpc.service_config_disable_resolution", 1),  # no look-ups of TXT records
    # close() closes the connection, though another client calls the same address
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    # Despite its name, how long an attempt to connect may take: a thousand workers that call a new leader at once took
    # 2.2 s here until all handshakes were done. The next line bounds how soon the next attempt follows.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
]
_STATUS_OF = {
    Reason.UNAUTHENTIC: grpc.StatusCode.UNAUTHENTICATED,
    Reason.VERSION: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.OVERSIZED: grpc.StatusCode.OUT_OF_RANGE,
    Reason.MALFORMED: grpc.StatusCode.INVALID_ARGUMENT,
}
_REASON_OF = {status: reason for reason, status in _STATUS_OF.items()} | {
    grpc.StatusCode.RESOURCE_EXHAUSTED: Reason.OVERLOADED
}


class Server(Service):
    """Listen for one job. The handler may hold calls for seconds; calls do not delay each other."""

    def __init__(
        self,
        secret: bytes,
        job: str,
        handler: Handler,
        *,
        request_types: Any,
        refusals: Refusals,
        termless: tuple[type, ...] = (),
    ) -> None:
        super().__init__(secret, job, handler, request_types=request_types, refusals=refusals, termless=termless)
        self._server: grpc.aio.Server | None = None

    async def start(self, host: str) -> int:
        """Listen on this address only; return the port. Raises ConfigError."""
        server = grpc.aio.server(options=_SERVER_OPTIONS, maximum_concurrent_rpcs=CALLS_AT_ONCE)
        method = grpc.unary_unary_rpc_method_handler(self._carry)
        server.add_generic_rpc_handlers((_OneMethod(method, self._refusals),))
        try:
            port = int(server.add_insecure_port(_target(host, 0)))
        except RuntimeError as error:
            raise ConfigError(f"cannot listen on {host}: {error}") from error
        self.address = _target(host, port)
        await server.start()
        self._server = server
        return port

    async def stop(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(STOP_GRACE_S)

    async def _carry(self, wire: bytes, context: Any) -> bytes:
        try:
            return await self.answer(wire)
        except Unauthentic as error:
            await context.abort(_STATUS_OF[Reason.UNAUTHENTIC], str(error))
        except Refused as refusal:
            await context.abort(_STATUS_OF[refusal.reason], refusal.detail)
        raise AssertionError("abort() raises")


class _OneMethod:
    """The handler lookup of gRPC. A call of another method is answered UNIMPLEMENTED, and counted."""

    def __init__(self, handler: Any, refusals: Refusals) -> None:
        self._handler = handler
        self._refusals = refusals

    def service(self, call: Any) -> Any:
        if call.method == f"/{SERVICE}/{METHOD}":
            return self._handler
        self._refusals.count(Reason.UNKNOWN_METHOD)
        return None


class Client:
    """Call one address; see `edl.transport.call_errors.Caller`. The connection is opened with the first call, and again
    when it was lost.
    """

    def __init__(self, secret: bytes, job: str, sender: str, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._address = _target(host.strip("[]"), int(port))
        self._speaker = Speaker(secret, job, sender, self._address)
        self._channel: grpc.aio.Channel | None = None
        self._closed = False

    def connect(self) -> None:
        self._opened().get_state(try_to_connect=True)

    @overload
    async def call(self, body: msgspec.Struct, reply_type: type[R], *, term: int, deadline_s: float) -> R: ...
    @overload
    async def call(self, body: msgspec.Struct, reply_type: UnionType, *, term: int, deadline_s: float) -> Any: ...
    async def call(self, body: msgspec.Struct, reply_type: Any, *, term: int, deadline_s: float) -> Any:
        request = self._speaker.seal(body, term)
        try:
            reply = await self._connected()(request, timeout=deadline_s)
        except grpc.aio.AioRpcError as error:
            self._fail(error)
        except asyncio.CancelledError as error:
            if not self._closed or being_cancelled():
                raise
            raise Unreachable(f"the client of {self._address} is closed") from error
        return self._speaker.open(reply, request, reply_type)

    async def close(self) -> None:
        self._closed = True
        if self._channel is not None:
            channel, self._channel = self._channel, None
            await channel.close()

    def _connected(self) -> Any:
        return self._opened().unary_unary(f"/{SERVICE}/{METHOD}")

    def _opened(self) -> grpc.aio.Channel:
        if self._closed:
            raise Unreachable(f"the client of {self._address} is closed")
        if self._channel is None:  # not in the constructor: a channel belongs to the loop that is running
            self._channel = grpc.aio.insecure_channel(self._address, options=_CLIENT_OPTIONS)
        return self._channel

    def _fail(self, error: grpc.aio.AioRpcError) -> NoReturn:
        status, detail = error.code(), error.details() or ""
        if status is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise DeadlineExceeded(f"{self._address} did not answer in time") from error
        if status in _REASON_OF:
            unproven(_REASON_OF[status], f"{self._address}: {detail}")
        raise Unreachable(f"{self._address}: {status.name.lower()}: {detail}") from error


def _target(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
