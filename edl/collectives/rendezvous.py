"""The server through which a trainer finds the other members of its ring, for the gloo of Horovod 0.28.1.

Owns: what one trainer and its own daemon say to each other while one ring forms. Does not own: how addresses come from
the other daemons (`edl.daemon.address_book`), nor the connections between trainers. Runs on the event loop of the
trainer's daemon, listens on loopback alone, and ends when the ring stands or is given up.

What Horovod asks (horovod/common/gloo/http_store.cc, gloo_context.cc; gloo/rendezvous/context.cc): one HTTP request
per connection, `METHOD /<scope>/<key>`.

    GET /rank_and_size/<host name>:<local rank>
                            'rank,size,local rank,local size,cross rank,cross size'; rank -1: not in this job
    PUT /<scope>/rank_<r>   host name of rank r; the others' are asked for at once, and not waited for
    PUT /<scope>/<r>        addresses of rank r, one per peer
    GET /<scope>/<r>        again and again, 10 ms apart, until it is there: here the answer waits for the key instead
    DELETE /<scope>/<r>     rank r is connected to all, and so (after a barrier) is each rank

Scopes are `global`, `local_<host name>` and `cross_<local rank>`, alone for the first three meshes that `init()` builds
and followed by `_process_set_hash_<hex>` for the three of each process set. The topology is flat: each member passes
for a host of its own (its id is the host name), so that the local and cross meshes have one member and cost nothing.

Horovod has no room for a proof in that, but it takes its server's address as it finds it: in
`http://<address>:<port>/<scope>/<key>` the address may end with a slash and a word. So each request begins with a
token, drawn anew for each ring, and our trainer is known by it; other processes of this machine have nothing to say.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

from edl.collectives.rendezvous_board import (
    RANK_AND_SIZE,
    BoardRequest,
    Refusal,
    RendezvousBoard,
    RequestRefused,
    parse,
)
from edl.errors import ConfigError, RingBroken

LOOPBACK = "127.0.0.1"
# Shorter than gloo's own time-out (30 s), which it can only notice between two requests.
HOLD_S = 1.0
ACCEPT_PAUSE_S = 0.1
REQUEST_S = 5.0  # for the parts of a request, and of an answer, that do not wait for a member
MOST_CONNECTIONS = 64  # a trainer asks one thing after the other
TOKEN_BYTES = 24
CANNOT_FORM = 410  # a status for which Horovod gives up, too
HOROVODS_PORT = "0"  # it follows the token, and a colon

_STATUS = {
    Refusal.MALFORMED: 400,
    Refusal.STRANGER: 403,
    Refusal.UNKNOWN: 403,
    Refusal.CONFLICT: 409,
    Refusal.OVERSIZED: 413,
    Refusal.FULL: 503,
    Refusal.SLOW: 408,
}


class Heard(Protocol):
    """Callbacks of a rendezvous, whose owner exchanges addresses with the other members."""

    def began(self, mesh: str) -> None: ...

    def wrote(self, mesh: str, parcels: Sequence[bytes]) -> None:
        """Send these parcels, one for each rank of the mesh."""


class Rendezvous:
    """The server of one trainer, for one ring."""

    def __init__(
        self,
        worker: str,
        rank: int,
        size: int,
        heard: Heard,
        *,
        hold_s: float = HOLD_S,
        on_refused: Callable[[Refusal], None] = lambda _: None,
    ) -> None:
        """Call `on_refused` at each refusal too: this server and its own count are soon gone."""
        self.hold_s = hold_s
        self._token = secrets.token_urlsafe(TOKEN_BYTES)
        self._heard = heard
        self._on_refused = on_refused
        self._board = RendezvousBoard(worker, rank, size)
        self._begun: set[str] = set()
        self._failed = ""
        self._refused: Counter[str] = Counter()
        self._waiting: defaultdict[tuple[str, str], set[_Connection]] = defaultdict(set)
        self._connections: dict[_Connection, None] = {}  # oldest first
        self._max_connections = MOST_CONNECTIONS
        self._acceptor: _Acceptor | None = None

    def open(self) -> str:
        """Listen. Return what Horovod is to take for its server's address (its port is `HOROVODS_PORT`)."""
        try:
            listening = socket.create_server((LOOPBACK, 0), backlog=MOST_CONNECTIONS)
        except OSError as error:
            raise ConfigError(f"cannot listen on {LOOPBACK}: {error}") from error
        self._acceptor = _Acceptor(listening, lambda: _Connection(self))
        return f"{LOOPBACK}:{listening.getsockname()[1]}/{self._token}"

    async def stop(self) -> None:
        """Cut connections that still wait: Horovod tries three times, 0.5 s apart, and fails. Harmless twice.

        Without the guard, which `edl.collectives.horovod_engine` uses, that ends their processes.
        """
        if self._acceptor is None:
            return
        acceptor, self._acceptor = self._acceptor, None
        await acceptor.stop()
        for connection in list(self._connections):
            connection.abort()

    def deliver(self, mesh: str, parcels: Mapping[int, bytes]) -> None:
        """Take parcels of other members, by rank, and answer the requests that wait for them."""
        self._board.deliver(mesh, parcels)
        for scope, key in list(self._waiting):  # one or two: a trainer asks one thing after the other
            if scope == mesh and int(key) in parcels:
                self._tell(scope, key)

    def fail(self, reason: str) -> None:
        """Answer all waiting and later requests for addresses with the reason why the ring cannot form."""
        self._failed = reason
        for scope, key in list(self._waiting):
            self._tell(scope, key)

    @property
    def awaited(self) -> frozenset[int]:
        """Return the ranks whose addresses the trainer has asked for and not got yet."""
        return frozenset(int(rank) for _, rank in self._waiting)

    def refusals(self) -> dict[str, int]:
        """Return the number of refused requests by reason."""
        return dict(self._refused)

    # What connections call:

    def _joined(self, connection: _Connection) -> bool:
        """Return False if too many are connected. Connections without the token make room for our trainer."""
        if len(self._connections) >= self._max_connections:
            self._count(Refusal.FULL)
            unproven = next((one for one in self._connections if not one.proven), None)
            if unproven is None:
                return False
            unproven.abort()
            del self._connections[unproven]
        self._connections[connection] = None
        return True

    def _left(self, connection: _Connection) -> None:
        self._connections.pop(connection, None)
        if connection.awaited is not None:
            self._waiting[connection.awaited].discard(connection)
            if not self._waiting[connection.awaited]:
                del self._waiting[connection.awaited]
            connection.awaited = None

    def _count(self, refusal: Refusal) -> None:
        self._refused[refusal.value] += 1
        self._on_refused(refusal)

    def _handle(self, connection: _Connection, request: BoardRequest) -> None:
        try:
            if not hmac.compare_digest(request.token, f"{self._token}:{HOROVODS_PORT}"):
                raise RequestRefused(Refusal.STRANGER)
            connection.proven = True
            self._dispatch(connection, request)
        except RequestRefused as error:
            connection.refuse(error.refusal)

    def _dispatch(self, connection: _Connection, request: BoardRequest) -> None:
        method, _, scope, key, body = request
        if method == "GET" and scope == RANK_AND_SIZE:
            connection.answer(200, self._board.place(key))
        elif method == "GET":
            self._get(connection, scope, key)
        elif method == "PUT":
            self._put(connection, scope, key, body)
        else:
            self._board.finish(scope, key)
            connection.answer(200)

    def _get(self, connection: _Connection, scope: str, key: str) -> None:
        value = self._board.get(scope, key)
        if self._failed:
            connection.answer(CANNOT_FORM, self._failed.encode())
        elif value is not None:
            connection.answer(200, value)
        elif key.startswith("rank_"):
            connection.answer(404)  # a hint that gloo asks for and does not use: no member is asked for it
        else:
            connection.awaited = (scope, key)
            self._waiting[scope, key].add(connection)
            connection.give_up_after(self.hold_s)

    def _put(self, connection: _Connection, scope: str, key: str, body: bytes) -> None:
        self._board.put(scope, key, body)
        parcels = self._board.parcels(scope)
        connection.answer(200)
        if scope not in self._begun and self._board.has_others(scope):
            self._begun.add(scope)
            self._heard.began(scope)
        if parcels is not None and not key.startswith("rank_"):
            self._heard.wrote(scope, parcels)

    def _tell(self, scope: str, key: str) -> None:
        waiting = self._waiting.pop((scope, key), set())
        value = self._board.get(scope, key)
        for connection in waiting:
            connection.awaited = None
            if self._failed:
                connection.answer(CANNOT_FORM, self._failed.encode())
            else:
                connection.answer(404 if value is None else 200, value or b"")


class _Acceptor:
    """Accept connections, in place of `asyncio.Server`.

    That class forgets a connection which it accepted just before its `close()` (Python 3.11: an assertion fails in a
    task of its own), without closing it; Horovod's client, which has no time-out, would wait for an answer for ever.
    """

    def __init__(self, listening: socket.socket, protocol: Callable[[], asyncio.Protocol]) -> None:
        self._listening = listening
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._connecting: set[asyncio.Task[Any]] = set()
        self._pause: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        self._resume()

    async def stop(self) -> None:
        """Stop listening. Return once every accepted connection has its protocol."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listening)
        self._listening.close()
        if self._connecting:
            await asyncio.wait(self._connecting)

    def _resume(self) -> None:
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        try:
            accepted, _ = self._listening.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:  # no more descriptors: those who wait in the queue keep, and we must not spin
            self._loop.remove_reader(self._listening)
            self._pause = self._loop.call_later(ACCEPT_PAUSE_S, self._resume)
            return
        accepted.setblocking(False)
        task = self._loop.create_task(self._loop.connect_accepted_socket(self._protocol, accepted))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)


class _Connection(asyncio.Protocol):
    """A connection for one request. All of it must be done within REQUEST_S, but for the wait for a key."""

    def __init__(self, rendezvous: Rendezvous) -> None:
        self.proven = False
        self.awaited: tuple[str, str] | None = None
        self._rendezvous = rendezvous
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._answered = False
        self._timer: asyncio.TimerHandle | None = None

    def answer(self, status: int, body: bytes = b"") -> None:
        if self._transport is None or self._answered:
            return
        self._answered = True
        self._expect(REQUEST_S, self.abort)
        # Horovod's client asks for this very spelling of Content-Length, and takes nothing but 200 and 404.
        head = f"HTTP/1.1 {status} {'OK' if status == 200 else 'No'}\r\nContent-Length: {len(body)}\r\n"
        self._transport.write(head.encode() + b"Connection: close\r\n\r\n" + body)
        self._transport.close()

    def refuse(self, refusal: Refusal) -> None:
        self._rendezvous._count(refusal)
        self.answer(_STATUS[refusal])

    def give_up_after(self, seconds: float) -> None:
        """Answer 404 if the key is not there by then: the client asks again."""
        self._expect(seconds, self.answer, 404)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # What the event loop calls:

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)
        if not self._rendezvous._joined(self):
            stream.abort()
            return
        self._transport = stream
        self._expect(REQUEST_S, self.refuse, Refusal.SLOW)

    def data_received(self, data: bytes) -> None:
        if self._answered or self.awaited is not None:
            return
        self._received += data
        try:
            request = parse(self._received, self._rendezvous._board.max_value)
        except RequestRefused as error:
            self.refuse(error.refusal)
            return
        if request is not None:
            self._rendezvous._handle(self, request)

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None
        self._rendezvous._left(self)
        if self._timer is not None:
            self._timer.cancel()

    def _expect(self, seconds: float, otherwise: Callable[..., None], *arguments: Any) -> None:
        # One timer is enough, for what must happen next.
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, otherwise, *arguments)


# Requests of a trainer to its own daemon while a ring forms, if Horovod does not send them itself.


FOUND, NOT_YET = 200, 404
MOST_BYTES = 1 << 20  # of an answer
SILENCE = "its daemon did not answer"


class RendezvousClient:
    """Ask about one mesh of one ring, on the thread that forms it. Any thread may call `give_up`."""

    def __init__(self, rendezvous: str, mesh: str, timeout_s: float) -> None:
        address, _, token = rendezvous.partition("/")
        host, _, port = address.rpartition(":")
        self._address = host, int(port)
        self._path = f"/{token}:{HOROVODS_PORT}/{mesh}"
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._turn = threading.Lock()
        self._open: socket.socket | None = None
        self._reason = ""  # why it was given up

    def write(self, rank: int, row: bytes) -> None:
        """Write the addresses of this member, whose rank is `rank`. Raises RingBroken."""
        self._expect(self._ask("PUT", rank, row))

    def read(self, rank: int) -> bytes:
        """Wait for the addresses that `rank` has for this member, and return them. Raises RingBroken."""
        while True:
            status, body = self._ask("GET", rank)
            if status != NOT_YET:
                self._expect((status, body))
                return body

    def finish(self, rank: int) -> None:
        """Say that no member needs the addresses any more. Raises RingBroken."""
        self._expect(self._ask("DELETE", rank))

    def give_up(self, reason: str) -> None:
        """Raise RingBroken in each thread that waits for an answer, or asks later."""
        with self._turn:
            self._reason = self._reason or reason
            if self._open is not None:
                with contextlib.suppress(OSError):  # it may not be connected yet, or not any more
                    self._open.shutdown(socket.SHUT_RDWR)

    def _expect(self, answer: tuple[int, bytes]) -> None:
        status, body = answer
        if status == CANNOT_FORM:
            raise RingBroken(body.decode(errors="replace"))
        if status != FOUND:
            raise RingBroken(f"its daemon did not take a request: {status}")

    def _ask(self, method: str, rank: int, body: bytes = b"") -> tuple[int, bytes]:
        # The daemon closes each connection after its answer.
        head = f"{method} {self._path}/{rank} HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.socket(socket.AF_INET) as connection:
            with self._turn:
                self._check()
                connection.settimeout(max(0.001, self._deadline - time.monotonic()))
                self._open = connection
            try:
                connection.connect(self._address)
                connection.sendall(head.encode() + body)
                return _answer(connection)
            except OSError as error:
                self._check()
                raise RingBroken(SILENCE) from error
            finally:
                with self._turn:
                    self._open = None

    def _check(self) -> None:
        if self._reason:
            raise RingBroken(self._reason)
        if time.monotonic() >= self._deadline:
            raise RingBroken(f"not all members came within {self._timeout_s:g} s")


def _answer(connection: socket.socket) -> tuple[int, bytes]:
    """Return status and body, once the daemon has closed the connection. Raises OSError."""
    received = bytearray()
    while part := connection.recv(65536):
        received += part
        if len(received) > MOST_BYTES:
            raise OSError("an answer without an end")
    head, _, body = bytes(received).partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    if len(words) < 2 or not words[1].isdigit():
        raise OSError("no answer")
    return int(words[1]), body
