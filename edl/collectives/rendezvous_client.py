"""Requests of a trainer to its own daemon while a ring forms, if Horovod does not send them itself.

Owns: the requests of one mesh, their deadline, and giving them up. Does not own: what there is to ask, and the answers
(`edl.collectives.rendezvous`).
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time

from edl.collectives.rendezvous import CANNOT_FORM, HOROVODS_PORT
from edl.errors import RingBroken

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
