"""The private socket between a trainer and its daemon: typed messages both ways, and immediate notice of either's end.

A Unix socket in a folder of mode 0700; the kernel names the peer's user. A frame is a 4-byte big-endian length and a
msgpack message, a member of a tagged union. The daemon's side lives on its event loop. The trainer's side is blocking,
with one reader thread, because a script has no loop. The embedded coordinator (`edl.coordination.embedded`) is served
by such a pipe, too; its clients have a loop (`LoopClient`).

A trap: a socket ends when its *last* descriptor is closed, and a forked child of the trainer (a data loader) has one.
So forks close theirs here, and a daemon that must be sure watches the process itself
(`edl.host.host_processes.watch_exit`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec

from edl.errors import ConfigError
from edl.transport.call_errors import PipeClosed

MAX_BYTES = 16 * 1024 * 1024
UNSENT_BYTES = 64 * 1024 * 1024  # unsent bytes to a trainer that holds the GIL, beyond which it counts as gone
SEND_TIMEOUT_S = 10  # a daemon's loop that does not read for so long is stuck
STOP_GRACE_S = 1.0

_LENGTH = struct.Struct(">I")
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_LONGEST_ADDRESS = 107


def private_folder(path: str | os.PathLike[str]) -> Path:
    """Return a folder for this user alone; make it if it is missing. Raises ConfigError if others could get in."""
    folder = Path(path)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
        raise ConfigError(f"{folder} must be a folder of user {os.geteuid()}")
    if facts.st_mode & 0o077:
        raise ConfigError(f"{folder} is open to other users; chmod 700 it")
    return folder


# ------------------------------------------------------------------------------------------------- the daemon's side


class Connection(asyncio.Protocol):
    """The connection to a peer, as an end on an event loop sees it: to a trainer, for its daemon."""

    def __init__(self, end: PipeEnd) -> None:
        self.pid = 0
        self._end = end
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    def send(self, message: msgspec.Struct) -> None:
        """Queue a message. A message to a peer that is gone is dropped; `on_gone` reports the end."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._transport.get_write_buffer_size() > UNSENT_BYTES:
            self._transport.abort()
            return
        self._transport.write(_frame(message))

    def close(self) -> None:
        """Close the connection once the queued messages are sent; no more are received."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # Methods of asyncio.Protocol, called by the event loop:

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)
        pid, uid, _ = _peer(stream.get_extra_info("socket"))
        if uid != os.geteuid():
            stream.abort()
            return
        self.pid = pid
        self._transport = stream
        self._end._joined(self)

    def data_received(self, data: bytes) -> None:
        self._received += data
        try:
            for message in self._end._decoded(self._received):
                if self._transport is None or self._transport.is_closing():
                    return
                self._end._on_message(self, message)
        except PipeClosed:
            self.abort()

    def connection_lost(self, _: Exception | None) -> None:
        if self._transport is not None:
            self._transport = None
            self._end._left(self)


class PipeEnd:
    """An end on an event loop, where callbacks run; `on_gone` is called once per connection, however it ended."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        types: Any,
        on_message: Callable[[Connection, Any], None],
        on_gone: Callable[[Connection], None],
    ) -> None:
        self._path = Path(path)
        self._decoder = msgspec.msgpack.Decoder(types)
        self._on_message = on_message
        self._on_gone = on_gone

    def _joined(self, connection: Connection) -> None:
        """Note a connection with a process of this user."""

    def _left(self, connection: Connection) -> None:
        self._on_gone(connection)

    def _decoded(self, received: bytearray) -> Iterator[Any]:
        return _messages(received, self._decoder)


class PipeServer(PipeEnd):
    """Listen for trainers."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        types: Any,
        on_message: Callable[[Connection, Any], None],
        on_gone: Callable[[Connection], None],
    ) -> None:
        super().__init__(path, types, on_message, on_gone)
        self._connections: set[Connection] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen, in place of a daemon that died. Raises ConfigError if the folder is not private."""
        private_folder(self._path.parent)
        self._path.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with _address(self._path) as address:
                listening.bind(address)
            self._path.chmod(0o600)
            loop = asyncio.get_running_loop()
            self._server = await loop.create_unix_server(lambda: Connection(self), sock=listening)
        except BaseException:
            listening.close()
            raise

    async def stop(self) -> None:
        """Send queued messages, for a moment, end all connections and remove the socket. Harmless twice."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close()
        self._path.unlink(missing_ok=True)
        for connection in list(self._connections):
            connection.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_GRACE_S):
                await self._empty.wait()
        for connection in list(self._connections):  # peers that do not read
            connection.abort()

    def _joined(self, connection: Connection) -> None:
        self._connections.add(connection)
        self._empty.clear()

    def _left(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()
        super()._left(connection)


class LoopClient(PipeEnd):
    """Connect from an event loop."""

    async def connect(self) -> Connection:
        """Try once. Raises PipeClosed if no process listens, or another user's does."""
        connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connecting.setblocking(False)  # a server that is behind with its callers refuses at once
        try:
            with _address(self._path) as address:
                connecting.connect(address)
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_unix_connection(lambda: Connection(self), sock=connecting)
        except OSError as error:
            connecting.close()
            raise PipeClosed(f"no process listens at {self._path}: {error}") from error
        if not connection.is_open:  # it was ended as it was made
            raise PipeClosed(f"another user listens at {self._path}")
        return connection


# ------------------------------------------------------------------------------------------------ the trainer's side


class PipeClient:
    """The trainer's end. Callbacks run on the reader thread; `on_gone` is called once, last, and not after
    `close()`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        types: Any,
        on_message: Callable[[Any], None],
        on_gone: Callable[[], None],
    ) -> None:
        self._path = Path(path)
        self._decoder = msgspec.msgpack.Decoder(types)
        self._on_message = on_message
        self._on_gone = on_gone
        self._sending = threading.Lock()
        self._socket: socket.socket | None = None
        self._closed = False
        self._reader: threading.Thread | None = None

    def connect(self, timeout_s: float) -> None:
        """Wait until the daemon listens. Raises PipeClosed if it does not within `timeout_s`."""
        connected = _connect(self._path, timeout_s)
        _, uid, _ = _peer(connected)
        if uid != os.geteuid():
            connected.close()
            raise PipeClosed(f"user {uid} listens at {self._path}, not user {os.geteuid()}")
        self._socket = connected
        _open_clients.add(self)
        self._reader = threading.Thread(target=self._read, args=(connected,), name="edl-pipe", daemon=True)
        self._reader.start()

    @property
    def daemon_pid(self) -> int:
        """Return the pid at the other end, as the kernel knows it."""
        if self._socket is None:
            raise PipeClosed("not connected")
        return _peer(self._socket)[0]

    def send(self, message: msgspec.Struct) -> None:
        """Call it from any thread. Raises PipeClosed."""
        frame = _frame(message)
        with self._sending:
            if self._socket is None:
                raise PipeClosed("not connected")
            try:
                self._socket.sendall(frame)
            except OSError as error:  # also the send time-out: half a frame may be out, so the stream is lost
                _hang_up(self._socket)
                raise PipeClosed(f"the daemon does not take messages: {error}") from error

    def close(self) -> None:
        """Call it from any thread, also from a callback. Harmless twice."""
        self._closed = True
        with self._sending:
            connected, self._socket = self._socket, None
        if connected is None:
            return
        _hang_up(connected)  # wakes the reader, and tells the daemon even if a fork still has the descriptor
        if self._reader is not None and self._reader is not threading.current_thread():
            self._reader.join()
        connected.close()

    def _read(self, connected: socket.socket) -> None:
        received = bytearray()
        try:
            while chunk := connected.recv(65536):
                received += chunk
                for message in _messages(received, self._decoder):
                    if self._closed:
                        return
                    self._on_message(message)
        except (OSError, PipeClosed):
            pass  # the connection has ended, for whatever reason
        finally:
            _hang_up(connected)
            if not self._closed:
                self._on_gone()

    def _forget_in_fork(self) -> None:
        """Close the parent's connection in a forked child, without a message to the daemon."""
        connected, self._socket = self._socket, None
        self._sending = threading.Lock()  # the parent may have held the lock at that moment
        self._closed = True
        if connected is not None:
            connected.close()


_open_clients: weakref.WeakSet[PipeClient] = weakref.WeakSet()


def _forget_all_in_fork() -> None:
    for client in list(_open_clients):
        client._forget_in_fork()


os.register_at_fork(after_in_child=_forget_all_in_fork)


# -------------------------------------------------------------------------------------------------------- both sides


def _frame(message: msgspec.Struct) -> bytes:
    payload = msgspec.msgpack.encode(message)
    if len(payload) > MAX_BYTES:
        raise ValueError(f"a {type(message).__name__} of {len(payload)} bytes; at most {MAX_BYTES} go through a pipe")
    return _LENGTH.pack(len(payload)) + payload


def _messages(received: bytearray, decoder: msgspec.msgpack.Decoder[Any]) -> Iterator[Any]:
    """Take the complete messages off the front. Raises PipeClosed for a message that no peer of this build sends."""
    for payload in _frames(received):
        try:
            message = decoder.decode(payload)
        except msgspec.MsgspecError as error:
            raise PipeClosed(f"the peer says what is not understood here: {error}") from error
        yield message


def _frames(received: bytearray) -> Iterator[bytes]:
    while len(received) >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(received)
        if length > MAX_BYTES:
            raise PipeClosed(f"the peer announces a message of {length} bytes")
        end = _LENGTH.size + length
        if len(received) < end:
            return
        payload = bytes(received[_LENGTH.size : end])
        del received[:end]
        yield payload


def _peer(connected: socket.socket) -> tuple[int, int, int]:
    """Return pid, uid and gid of the other end, as they were when it connected or listened."""
    raw = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(raw)
    return pid, uid, gid


def _connect(path: Path, timeout_s: float) -> socket.socket:
    deadline = time.monotonic() + timeout_s
    while True:
        connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connecting.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_TIMEOUT_S, 0))
        try:
            with _address(path) as address:
                connecting.connect(address)
        except OSError as error:
            connecting.close()
            if time.monotonic() >= deadline:
                raise PipeClosed(f"no daemon listens at {path}: {error}") from error
            time.sleep(0.005)  # nothing announces that a daemon has begun to listen
            continue
        return connecting


def _hang_up(connected: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def _address(path: Path) -> Iterator[str]:
    """Yield a name for the socket that fits the kernel's 108 bytes, however long the path is."""
    if len(os.fsencode(path)) <= _LONGEST_ADDRESS:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
