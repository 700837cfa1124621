"""Send bytes from one trainer to others over connections of their own: a state on its way to newcomers.

    newcomer  MAGIC | generation | number of the state | nonce
    sender    nonce | MAC                       proves that the sender is of this ring; no other is spoken to
    newcomer  its own listening address | MAC   proves the same of the newcomer
    sender    ELSEWHERE | address | MAC         refers it to the newcomer there, who came before; or:
              HERE | lengths | MAC | head       the head is sealed; bytes follow, and at last whether they are whole

All MACs are HMAC-SHA256 under the ring's own key, which daemons derive from the job's secret, over all bytes exchanged
on this connection before. The bytes after the head are no better sealed than the ring's own traffic.

Each trainer sends to one other only: the first newcomer that comes gets the state, each further one is referred to the
one before, which passes on the bytes it has so far. So the bytes go through a chain, and the first sender sends them
once. A state too large for one step goes as several that follow each other, each with a number and connections of its
own.

Owns: connections, authentication of their ends, and that every wait has an end (I12). Does not own: the content of the
bytes, nor when they are sent (`edl.trainer.state_handoff`).
"""

from __future__ import annotations

import contextlib
import hmac
import mmap
import secrets
import socket
import struct
import threading
import time
from typing import Protocol

from edl import background
from edl.errors import PeerError

MAGIC = b"edl state 2\n"
NONCE_BYTES = 16
MAC_BYTES = 32
HEAD_BYTES = 1 << 28  # a longer head does not come from this program
PART_BYTES = 1 << 20
GREETING_S = 5.0  # for the messages before the bytes
MOST_CALLERS = 64  # at once; strangers among them are dropped after a greeting's time

_ELSEWHERE, _HERE = b"E", b"H"
_WHOLE, _TORN = b"W", b"T"
_NUMBER = struct.Struct(">Q")
_LENGTHS = struct.Struct(">QQ")


class StreamBroken(PeerError):
    """The state does not arrive, or no newcomer takes it; the message tells why."""


class Contents(Protocol):
    """The bytes that are sent: read from any thread, one part after the other."""

    @property
    def size(self) -> int:
        """Return the number of bytes."""

    def part(self, begin: int) -> memoryview:
        """Return some bytes from `begin` on, once there are any; not none, and not many. Raises StreamBroken."""

    def whole(self) -> bool:
        """Tell, once all was sent, whether it was one state all the while."""


def number_of(address: tuple[str, int]) -> int:
    """Encode an IPv4 address and a port as one number."""
    return int.from_bytes(socket.inet_aton(address[0]), "big") << 16 | address[1]


def address_of(number: int) -> tuple[str, int]:
    return socket.inet_ntoa((number >> 16).to_bytes(4, "big")), number & 0xFFFF


class _Conversation:
    """A connection, with all bytes exchanged on it so far, which each MAC covers."""

    def __init__(self, connection: socket.socket, key: bytes, timeout_s: float) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # short messages follow each other
        self.connection = connection
        self._key = key
        self._said = b""
        self.renew(timeout_s)

    def renew(self, timeout_s: float) -> None:
        """Bound the time of all that follows."""
        self._until = time.monotonic() + timeout_s

    def wait(self) -> bytes:
        """Return the next byte, however long it takes. Raises StreamBroken if the connection was closed."""
        self.connection.settimeout(None)
        byte = self.connection.recv(1)
        if not byte:
            raise StreamBroken("the connection was closed")
        return byte

    def say(self, words: bytes, *, sealed: bool) -> None:
        self._limit()
        seal = self._mac(words) if sealed else b""
        self.connection.sendall(words + seal)
        self._said += words

    def hear(self, length: int, *, sealed: bool) -> bytes:
        """Receive so many bytes, and their seal. Raises StreamBroken."""
        heard = self._take(length + (MAC_BYTES if sealed else 0))
        words, seal = heard[:length], heard[length:]
        if sealed and not hmac.compare_digest(seal, self._mac(words)):
            raise StreamBroken("the other end is not of this ring")
        self._said += words
        return words

    def _mac(self, words: bytes) -> bytes:
        return hmac.digest(self._key, self._said + words, "sha256")

    def _take(self, length: int) -> bytes:
        taken = bytearray()
        while len(taken) < length:
            self._limit()
            part = self.connection.recv(min(length - len(taken), PART_BYTES))
            if not part:
                raise StreamBroken("the connection was closed")
            taken += part
        return bytes(taken)

    def _limit(self) -> None:
        left = self._until - time.monotonic()
        if left <= 0:
            raise StreamBroken("the greeting took too long")
        self.connection.settimeout(left)


class _SentState:
    """The state with one number, and the newcomers that have come for it."""

    def __init__(self) -> None:
        self.head = b""
        self.contents: Contents | None = None
        self.last: bytes = b""  # the listening address of the newest that came
        self.came = 0  # number of newcomers of this ring that have come
        self.given: bool | None = None  # the first newcomer has all of it; False: it never will; None: not yet


class StateSender:
    """Listen for newcomers that come for this trainer's state, present or future. All methods belong to any thread.

    A stranger gets a nonce and a MAC of it, and nothing else.
    """

    def __init__(self, host: str, key: bytes, generation: int, timeout_s: float) -> None:
        """Begin to listen. Raises OSError. `host`: the one address that it listens at."""
        self._key = key
        self._generation = generation
        self._timeout_s = timeout_s
        self._news = threading.Condition()
        self._gifts: dict[int, _SentState] = {}  # the newest, and later ones that newcomers have asked for already
        self._newest = 0
        self._callers: set[socket.socket] = set()
        self._closed = False
        self._listening = socket.create_server((host, 0), backlog=MOST_CALLERS)
        self.number = number_of(self._listening.getsockname())
        threading.Thread(target=self._listen, name="edl-giving", daemon=True).start()

    def give(self, head: bytes, contents: Contents, number: int = 0) -> None:
        """Offer a state, under a number that grows. The head is complete; the contents may follow."""
        with self._news:
            gift = self._gifts.setdefault(number, _SentState())
            gift.head, gift.contents = head, contents
            self._gifts = {one: kept for one, kept in self._gifts.items() if one >= number}
            self._newest = number
            self._news.notify_all()

    @property
    def asked(self) -> bool:
        """Tell whether a member of this ring has come for the newest state."""
        with self._news:
            return self._newest in self._gifts and self._gifts[self._newest].came > 0

    def wait_given(self, callers: int, timeout_s: float) -> bool:
        """Wait until `callers` newcomers have come for the newest state, and the first has all of it, so that no thread
        reads it any more. Return False if that fails.
        """
        until = time.monotonic() + timeout_s
        with self._news:
            gift = self._gifts.setdefault(self._newest, _SentState())
            while not self._closed and gift.given is not False:
                if gift.given and gift.came >= callers:
                    return True
                left = until - time.monotonic()
                if left <= 0:
                    return False
                self._news.wait(left)
        return False

    def close(self) -> None:
        """Stop serving callers. Harmless twice."""
        with self._news:
            self._closed = True
            callers, self._callers = self._callers, set()
            self._news.notify_all()
        for one in (self._listening, *callers):
            _end(one)

    def _listen(self) -> None:
        while True:
            try:
                caller, _ = self._listening.accept()
            except OSError:  # it was closed
                return
            with self._news:
                full = self._closed or len(self._callers) >= MOST_CALLERS
                if not full:
                    self._callers.add(caller)
            if full:
                _end(caller)
            else:
                threading.Thread(target=self._serve, args=(caller,), name="edl-giving", daemon=True).start()

    def _serve(self, caller: socket.socket) -> None:
        try:
            talk = _Conversation(caller, self._key, min(GREETING_S, self._timeout_s))
            self._greet(talk)
        except (OSError, PeerError):
            pass  # a stranger, or a caller that is gone: a newcomer of this ring learns of it by its own wait
        finally:
            with self._news:
                self._callers.discard(caller)
            _end(caller)

    def _greet(self, talk: _Conversation) -> None:
        opening = talk.hear(len(MAGIC) + 2 * _NUMBER.size + NONCE_BYTES, sealed=False)
        known = MAGIC + _NUMBER.pack(self._generation)
        if not opening.startswith(known):
            return
        (number,) = _NUMBER.unpack_from(opening, len(known))
        talk.say(secrets.token_bytes(NONCE_BYTES), sealed=True)
        theirs = talk.hear(_NUMBER.size, sealed=True)
        with self._news:
            if number < self._newest:
                return
            gift = self._gifts.setdefault(number, _SentState())
            before, gift.last = gift.last, theirs
            gift.came += 1
            self._news.notify_all()
        if before:
            talk.say(_ELSEWHERE + before, sealed=True)
            return
        given = False
        try:
            self._send(talk, gift)
            given = True
        finally:
            with self._news:
                gift.given, gift.contents = given, None  # the contents may be the giver's own memory, about to change
                self._news.notify_all()

    def _send(self, talk: _Conversation, gift: _SentState) -> None:
        head, contents = self._await_contents(gift)
        connection = talk.connection
        talk.renew(self._timeout_s)
        talk.say(_HERE + _LENGTHS.pack(len(head), contents.size), sealed=True)
        connection.settimeout(self._timeout_s)
        connection.sendall(talk._mac(head))
        connection.sendall(head)
        begin = 0
        while begin < contents.size:
            part = contents.part(begin)
            connection.sendall(part)
            begin += len(part)
        connection.sendall(_WHOLE if contents.whole() else _TORN)

    def _await_contents(self, gift: _SentState) -> tuple[bytes, Contents]:
        with self._news:
            while gift.contents is None:
                if self._closed:
                    raise StreamBroken("there is nothing to give")
                self._news.wait()
            return gift.head, gift.contents


class StateReceiver:
    """Receive `Contents` from another trainer; they can be passed on while they arrive."""

    def __init__(self, source: int, key: bytes, generation: int, here: int, timeout_s: float, number: int = 0) -> None:
        """`source`: whom to ask; `here`: this trainer's own listening address; `number`: of the state."""
        self._source = source
        self._number = number
        self._key = key
        self._generation = generation
        self._here = here
        self._timeout_s = timeout_s
        self._news = threading.Condition()
        self._connection: socket.socket | None = None
        self._taken = 0
        self._buffer = memoryview(b"")
        self._state: bool | None = None  # whole, or not; None: not known yet
        self._failure = ""

    def begin(self) -> bytes:
        """Return the head, once the other end has it; the rest arrives on a thread of its own. Raises StreamBroken if
        the other end is gone, or this is given up.
        """
        try:
            return self._begin()
        except OSError as error:
            self.give_up(f"{type(error).__name__}: {error}")
        except StreamBroken as error:
            self.give_up(str(error))
        raise StreamBroken(self._failure)

    def _begin(self) -> bytes:
        # One that had it may be gone, and this trainer listen at the port that it had: it would wait for itself.
        asked, source = {self._here}, self._source
        while True:
            if source in asked:
                raise StreamBroken("each says that another has it")
            asked.add(source)
            answer = self._ask(address_of(source))
            if isinstance(answer, bytes):
                background.let_go(self._take)
                return answer
            source = answer

    def _ask(self, address: tuple[str, int]) -> bytes | int:
        """Return the head, or the number of the address to ask instead."""
        connection = socket.create_connection(address, timeout=min(GREETING_S, self._timeout_s))
        with self._news:
            self._connection = connection
            failure = self._failure
        if failure:
            _abort(connection)
            raise StreamBroken(failure)
        talk = _Conversation(connection, self._key, self._timeout_s)
        wanted = _NUMBER.pack(self._generation) + _NUMBER.pack(self._number)
        talk.say(MAGIC + wanted + secrets.token_bytes(NONCE_BYTES), sealed=False)
        talk.hear(NONCE_BYTES, sealed=True)
        talk.say(_NUMBER.pack(self._here), sealed=True)
        kind = talk.wait()  # the sender may be in a long step, before its state is ready
        talk.renew(self._timeout_s)
        if kind == _ELSEWHERE:
            elsewhere = _sealed(talk, kind, _NUMBER.size)
            _end(connection)
            return int(_NUMBER.unpack(elsewhere)[0])
        head_bytes, size = _LENGTHS.unpack(_sealed(talk, kind, _LENGTHS.size))
        if head_bytes > HEAD_BYTES:
            raise StreamBroken(f"a head of {head_bytes} bytes")
        seal = talk._take(MAC_BYTES)
        head = talk._take(head_bytes)
        if not hmac.compare_digest(seal, talk._mac(head)):
            raise StreamBroken("the head was changed on its way")
        connection.settimeout(self._timeout_s)
        self._buffer = _room(size)
        return head

    def _take(self) -> None:
        connection = self._connection
        assert connection is not None
        try:
            while self._taken < self.size:
                came = connection.recv_into(self._buffer[self._taken : self._taken + PART_BYTES])
                if not came:
                    raise StreamBroken("the connection was closed")
                with self._news:
                    self._taken += came
                    self._news.notify_all()
            verdict = connection.recv(1)
        except (OSError, StreamBroken) as error:
            self.give_up(str(error) or type(error).__name__)
        else:
            with self._news:
                self._state = verdict == _WHOLE
                self._failure = self._failure or ("" if self._state else "it was changed while it was sent")
                self._news.notify_all()
        finally:
            _end(connection)

    def give_up(self, reason: str) -> None:
        """Give up, from any thread, and wake threads that wait. Harmless once all has arrived."""
        with self._news:
            self._failure = self._failure or ("" if self._state else reason)
            connection = self._connection
            self._news.notify_all()
        if connection is not None:
            _abort(connection)

    def wait_first(self, size: int, timeout_s: float) -> memoryview:
        """Return the first `size` bytes. Raises StreamBroken, in time."""
        with self._news:
            came = self._news.wait_for(lambda: self._taken >= size or self._failure, timeout_s)
            if self._taken >= size:
                return self._buffer[:size]
            raise StreamBroken(self._failure if came else f"its beginning did not come within {timeout_s:g} s")

    def wait_whole(self, timeout_s: float) -> memoryview:
        """Return all bytes. Raises StreamBroken, in time."""
        with self._news:
            came = self._news.wait_for(lambda: self._state is not None or self._failure, timeout_s)
            if self._failure:
                raise StreamBroken(self._failure)
        if not came:
            raise StreamBroken(f"it did not come within {timeout_s:g} s")
        return self._buffer

    # `Contents`, for newcomers that are referred to this one

    @property
    def size(self) -> int:
        return len(self._buffer)

    def part(self, begin: int) -> memoryview:
        with self._news:
            while self._taken <= begin and not self._failure:
                if not self._news.wait(self._timeout_s):
                    raise StreamBroken("nothing more has come")
            if self._taken <= begin:
                raise StreamBroken(self._failure)
            return self._buffer[begin : min(self._taken, begin + PART_BYTES)]

    def whole(self) -> bool:
        with self._news:
            while self._state is None and not self._failure:
                if not self._news.wait(self._timeout_s):
                    return False
            return bool(self._state)


def _room(size: int) -> memoryview:
    """Allocate private memory whose pages are not touched before they fill."""
    if not size:
        return memoryview(b"")
    # Shared pages would cost more, and twice.
    return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def _sealed(talk: _Conversation, kind: bytes, length: int) -> bytes:
    """Return the body after the byte that tells its kind; the seal covers both."""
    words, seal = talk._take(length), talk._take(MAC_BYTES)
    if kind not in (_ELSEWHERE, _HERE) or not hmac.compare_digest(seal, talk._mac(kind + words)):
        raise StreamBroken("the other end is not of this ring")
    talk._said += kind + words
    return words


def _abort(connection: socket.socket) -> None:
    """Close by a reset, so that the other end, which may be sending, learns it at once.

    Otherwise the other end may wait for a minute: if it had filled this end's buffer, and the receiving thread empties
    that between the two halves of `_end`, Linux reports neither that there is room nor that the connection is gone.
    """
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closed by a reset
    _end(connection)


def _end(connection: socket.socket) -> None:
    """End the connection, also if a forked child has it, too."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
