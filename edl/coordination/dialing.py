"""Means to connect to servers of every kind: time-outs, a limit on concurrent calls, blocking calls in threads, TLS.

Owns: code that knows neither ZooKeeper nor etcd, and which user has the process at the other end of a TCP connection
within this machine, as the kernel knows it (`_gate.c` asks the same in a server's process). Does not own: connecting
(`kazoo_client`, `etcd.etcd_connection`), nor the calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from edl.coordination.coordinator_settings import ETCD, Coordinator, Tls
from edl.errors import StoreUnavailable, UsageError

_FAMILY, _BY_FAMILY, _REQUEST, _NO_COOKIE = 4, 20, 1, b"\xff" * 8  # <linux/netlink.h>, <linux/sock_diag.h>
_HEAD = struct.Struct("=IHHII")
_BODY = struct.Struct("=BBxxI")
_USER_AND_INODE = struct.Struct("=II")
_AT = _HEAD.size + 4 + 48 + 12  # offset of the user in an answer: after states, both ends, and three numbers
_LOOK_AGAIN_S = 0.002


class ForeignServer(OSError):
    """The port belongs to another user's server, which took it while ours was down."""

    def __init__(self, user: int) -> None:
        super().__init__(f"another user's server, uid {user}, has taken its port: have that user free it")
        self.user = user


def check_server(connection: socket.socket, user: int, patience_s: float) -> None:
    """Return once a process of `user`, or of root, has accepted the connection, or if the kernel cannot tell.

    A connection that no server has accepted yet belongs to no process. Raises ForeignServer, TimeoutError.
    """
    until = time.monotonic() + patience_s
    while (found := _owner(connection.family, connection.getpeername()[:2], connection.getsockname()[:2])) is not None:
        owner, inode = found
        if inode and owner in {user, 0}:
            return
        if inode:
            raise ForeignServer(owner)
        if time.monotonic() > until:
            raise TimeoutError("the server does not take the connection")
        time.sleep(_LOOK_AGAIN_S)


def _owner(family: int, here: tuple[str, int], there: tuple[str, int]) -> tuple[int, int] | None:
    """Ask the kernel for user and inode of the socket whose own end is `here` and whose peer is `there`; None if there
    is no such socket, or the kernel does not answer.
    """
    ends = struct.pack("!HH", here[1], there[1])
    ends += b"".join(_packed(family, address).ljust(16, b"\0") for address, _ in (here, there))
    request = _BODY.pack(family, socket.IPPROTO_TCP, 0xFFFF_FFFF) + ends + bytes(4) + _NO_COOKIE
    with contextlib.suppress(OSError), socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _FAMILY) as kernel:
        kernel.settimeout(1.0)
        kernel.send(_HEAD.pack(_HEAD.size + len(request), _BY_FAMILY, _REQUEST, 1, 0) + request)
        answer = kernel.recv(8192)
        if _HEAD.unpack_from(answer)[1] == _BY_FAMILY:
            user, inode = _USER_AND_INODE.unpack_from(answer, _AT)
            return user, inode
    return None


def _packed(family: int, address: str) -> bytes:
    return socket.inet_pton(family, address.partition("%")[0])


class CallLimit:
    """A limit of `at_once` concurrent calls; further calls wait as long as the coordinator answers those before them.

    A call's time-out begins when its turn comes, so a long queue is not taken for a silent coordinator. If a call is
    not answered in time, all calls that waited meanwhile give up with it, so that none waits through one time-out after
    another.
    """

    def __init__(self, at_once: int, answered_within_s: float) -> None:
        self._places = asyncio.Semaphore(at_once)
        self._answered_within_s = answered_within_s
        self._last_silence = -math.inf
        self._pid = os.getpid()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn and hold it. Raises TimeoutError if the work in it takes too long, or if another call timed
        out while this one waited.
        """
        loop = asyncio.get_running_loop()
        came = loop.time()
        async with self._places:  # first come, first served
            if self._last_silence >= came:
                raise TimeoutError
            try:
                async with asyncio.timeout(self._answered_within_s):
                    yield
            except TimeoutError:
                self._last_silence = loop.time()
                raise

    @asynccontextmanager
    async def call(self, hosts: str, *, closed: bool) -> AsyncIterator[None]:
        """Hold a turn for a call of a store, which may be `closed`. Each error is one of the port."""
        if os.getpid() != self._pid:
            raise UsageError("a session with the coordinator does not survive a fork: connect in the child process")
        if closed:
            raise StoreUnavailable("the store is closed")
        try:
            async with self.turn():
                yield
        except TimeoutError as error:
            raise StoreUnavailable(f"no answer from the coordinator {hosts} in time") from error


RECONNECT_MAX_S = 0.5
"""Between two attempts to connect. kazoo's own bound is an hour, gRPC's two minutes: clients came back half a minute
late."""

STOP_S = 2.0
"""How long to wait for a session's end to be answered: a silent server must not hold up the end of a process."""

T = TypeVar("T")


def patience_s(session_timeout_s: float) -> float:
    """Return how long one attempt to connect may wait for an answer before the next attempt."""
    return max(1.0, session_timeout_s / 4)


async def run_in_thread(call: Callable[[], T], *, timeout_s: float) -> T | None:
    """Run a blocking call in a daemon thread; return None if it takes longer than the time-out.

    The loop's own executor would be joined at the loop's end, however long the call takes.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def deliver(result: T) -> None:
        if not done.done():
            done.set_result(result)

    threading.Thread(target=lambda: tell(loop, deliver, call()), name="edl dialing", daemon=True).start()
    await asyncio.wait([done], timeout=timeout_s)
    return done.result() if done.done() else None


def tell(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *args: object) -> None:
    """Call `call` on the loop, from any thread."""
    with contextlib.suppress(RuntimeError):  # the loop is closed: no task waits for the call
        loop.call_soon_threadsafe(call, *args)


def tls_context(tls: Tls) -> ssl.SSLContext:
    """Make a TLS context that trusts only the given authority. Raises OSError for a missing or malformed file."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = tls.check_hostname
    context.load_verify_locations(tls.cafile)
    if tls.certfile:
        context.load_cert_chain(tls.certfile, tls.keyfile)
    return context


# Diagnosis of an unreachable coordinator, in one line with the remedy; kazoo and gRPC only report a time-out.


_PROBE_S = 1.5

_SRVR = b"srvr"
_HEALTH = b"GET /health HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\n\r\n"
_SPEAKS_TLS = "speaks TLS: set EDL_COORDINATOR_TLS_CA to the certificate of its authority"


async def explain(settings: Coordinator) -> str:
    """Return one line about every server of the list. It takes a few seconds at most and raises nothing."""
    looks = [
        run_in_thread(functools.partial(_look_at, host, port, settings), timeout_s=4 * _PROBE_S)
        for host, port in settings.endpoints
    ]
    findings = await asyncio.gather(*looks)
    story = "; ".join(
        f"{f'{host}:{port}' if port else host} {finding or 'takes too long to be looked up'}"
        for (host, port), finding in zip(settings.endpoints, findings, strict=True)
    )
    return f"cannot use the coordinator {settings.hosts}: {story}"


def _look_at(host: str, port: int, settings: Coordinator) -> str:
    if settings.socket:
        there = Path(settings.socket).exists()
        return "does not answer" if there else "is gone, and with it the `edl run` that had started it"
    return _look(host, port, settings)


def _look(host: str, port: int, settings: Coordinator) -> str:
    tls, kind = settings.tls, settings.kind
    try:
        with socket.create_connection((host, port), _PROBE_S) as connection:
            if settings.user is not None:
                check_server(connection, settings.user, _PROBE_S)
            if tls is not None:
                return _shake_hands(connection, host, tls, kind)
            finding = _ask(connection, kind)
        return _is_of_the_other_kind(host, port, kind) or finding
    except socket.gaierror as error:
        return f"has a host name that does not resolve ({error.strerror}): check the spelling"
    except ConnectionRefusedError:
        name = "etcd" if kind == ETCD else "ZooKeeper"
        return f"refuses the connection: nothing listens there; check the port, and that {name} runs"
    except TimeoutError:
        return "does not answer: check the address, and for a firewall in between"
    except OSError as error:
        return f"cannot be reached ({error.strerror or error})"


def _shake_hands(connection: socket.socket, host: str, tls: Tls, kind: str) -> str:
    try:
        secure = tls_context(tls).wrap_socket(connection, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        return (
            f"shows a certificate that does not hold ({error.verify_message}): check EDL_COORDINATOR_TLS_CA, and that "
            "the certificate names the host as EDL_COORDINATOR does"
        )
    except OSError as error:
        if "ALERT" in (getattr(error, "reason", None) or ""):
            return _wants_other_client(error)
        return f"does not speak TLS ({error}): use the server's secure port, or unset EDL_COORDINATOR_TLS_CA"
    with secure:
        try:
            return _ask(secure, kind)
        except ssl.SSLError as error:  # with TLS 1.3 a server judges the client's certificate after the handshake
            return _wants_other_client(error)


def _wants_other_client(error: OSError) -> str:
    return (
        f"ends the TLS connection ({error}): it may want a certificate of the client, or another one than "
        "EDL_COORDINATOR_TLS_CERT"
    )


def _ask(connection: socket.socket, kind: str) -> str:
    return _ask_etcd(connection) if kind == ETCD else _ask_zookeeper(connection)


def _said(connection: socket.socket, question: bytes) -> bytes:
    connection.settimeout(_PROBE_S)
    connection.sendall(question)
    try:
        return connection.recv(4096)
    except (TimeoutError, ConnectionResetError):
        return b""


def _is_of_the_other_kind(host: str, port: int, kind: str) -> str:
    try:
        with socket.create_connection((host, port), _PROBE_S) as connection:
            if kind == ETCD:
                found = b"Mode: " in _said(connection, _SRVR)
                return "is a ZooKeeper server: name it as HOST:PORT, without etcd://" if found else ""
            found = b'"health"' in _said(connection, _HEALTH)
            return f"is an etcd: name it as etcd://{host}:{port}" if found else ""
    except OSError:
        return ""


def _ask_etcd(connection: socket.socket) -> str:
    answer = _said(connection, _HEALTH)
    if b'"health":"true"' in answer:
        return "is an etcd and answers, but grants no session in time: try again, or see its log"
    if b'"health"' in answer:
        return "is an etcd without a leader, or unwell: start the others of its cluster, and see its log"
    if answer.startswith(b"\x15\x03"):
        return _SPEAKS_TLS
    if answer:
        return f"is no etcd (it says {answer[:20]!r}): check the port"
    return "accepts the connection but says nothing: it is no etcd, hangs, or wants TLS"


def _ask_zookeeper(connection: socket.socket) -> str:
    answer = _said(connection, _SRVR)
    if b"not currently serving" in answer:
        return "is a ZooKeeper server that is starting, or without a quorum: start the others of its ensemble"
    if b"Mode: " in answer or b"not in the whitelist" in answer:
        return "is a ZooKeeper server and answers, but grants no session in time: try again, or see its log"
    if answer.startswith(b"\x15\x03"):
        return _SPEAKS_TLS
    if answer:
        return f"is no ZooKeeper server (it says {answer[:20]!r}): check the port"
    return "accepts the connection but says nothing: it is no ZooKeeper server, hangs, or wants TLS"
