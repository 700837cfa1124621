"""A connection that can be cut: what stands between a browser and the page that it looks at."""

from __future__ import annotations

import contextlib
import socket
import threading

HOST = "127.0.0.1"


class Wire:
    """To a port of this machine. Use it as a context, and connect to `port`."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._ear = socket.create_server((HOST, 0))
        self.port: int = self._ear.getsockname()[1]
        self._whole = True
        self._ends: list[socket.socket] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._listen, daemon=True).start()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self._ear.shutdown(socket.SHUT_RDWR)  # to close it would wake no thread that waits for it
        self._ear.close()
        self.cut()

    def cut(self) -> None:
        """All that goes through it ends, and who comes is turned away."""
        with self._lock:
            self._whole = False
            for end in self._ends:
                hang_up(end)
            self._ends.clear()

    def mend(self) -> None:
        with self._lock:
            self._whole = True

    def _listen(self) -> None:
        with contextlib.suppress(OSError):  # it is closed
            while True:
                self._take(self._ear.accept()[0])

    def _take(self, near: socket.socket) -> None:
        with self._lock:
            if not self._whole:
                near.close()
                return
            far = socket.create_connection((HOST, self._to), timeout=10)
            far.settimeout(None)
            self._ends += [near, far]
        for source, target in ((near, far), (far, near)):
            threading.Thread(target=_carry, args=(source, target), daemon=True).start()


def _carry(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it is cut
        while piece := source.recv(65536):
            target.sendall(piece)
    hang_up(source)
    hang_up(target)
    source.close()


def hang_up(end: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the other side was first
        end.shutdown(socket.SHUT_RDWR)
