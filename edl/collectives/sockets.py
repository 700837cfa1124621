"""Connections of this process that a library holds, known by the addresses at their ends.

Owns: finding, counting and cutting them, and taking no more. Does not own: which addresses those are
(`edl.torch.groups`).

gloo hands out none of its connections. But it listens at one address for each ring, and it knows at which the other
members do: what has the first on this end, or one of the others on the far end, is the ring's, and nothing of the
script's is. A connection is looked at and cut by a descriptor of our own, so that none is mistaken which came into
being meanwhile under the same number. To look through all descriptors of a process takes milliseconds: once all
connections of a ring stand, their descriptors are kept until it is over.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import socket
import struct
import threading
from collections.abc import Collection, Iterator
from pathlib import Path

from edl.errors import RingBroken

Listening = tuple[str, int]

DESCRIPTORS = Path("/proc/self/fd")
AS_IT_IS = socket.SOCK_STREAM | socket.SOCK_NONBLOCK  # else a default time-out of the script would become its own
SO_ATTACH_FILTER = 26
TCP_MD5SIG_EXT = 32
_RETURN_NOTHING = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, 0))  # BPF_RET | BPF_K, no bytes
_OF_ALL_PEERS = 1  # TCP_MD5SIG_FLAG_PREFIX, of no bits


class Connections:
    """Of one ring. Any thread may call it."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._ours: set[Listening] = set()
        self._theirs: set[Listening] = set()
        self._held: list[socket.socket] | None = None  # once all stand

    def know(self, listening: Listening, *, own: bool) -> None:
        """Of this process, or of another member."""
        with self._turn:
            (self._ours if own else self._theirs).add(listening)

    def hold(self, least: int) -> None:
        """All stand, so many at least: none is taken any more. Raises RingBroken."""
        with self._turn:
            seal(self._ours)
            self._held = list(_connections(self._ours, self._theirs))
            if len(self._held) < least:
                raise RingBroken(
                    f"of {least} connections {len(self._held)} stand: a peer is gone, or no more files may be open "
                    "here (ulimit -n)"
                )

    def cut(self) -> int:
        """Shut down all of them. Returns how many.

        What listens stays: gloo's loop ends the process when that fails.
        """
        return self._shut_down(socket.SHUT_RDWR)

    def end(self) -> int:
        """Say on all of them that nothing more will come from here, behind what did. Returns how many."""
        return self._shut_down(socket.SHUT_WR)

    def living(self) -> int:
        """How many of them the other side has not ended, as far as what came is read."""
        with self._all() as connections:
            return sum(map(_lives, connections))

    def close(self) -> None:
        """They are cut, and not looked at any more."""
        self.cut()
        with self._turn:
            for connection in self._held or ():
                connection.close()
            self._held = []

    def _shut_down(self, way: int) -> int:
        found = 0
        with self._all() as connections:
            for connection in connections:
                with contextlib.suppress(OSError):  # the other side was first
                    connection.shutdown(way)
                    found += 1
        return found

    @contextlib.contextmanager
    def _all(self) -> Iterator[list[socket.socket]]:
        with self._turn:
            if self._held is not None:
                yield self._held
                return
            with contextlib.ExitStack() as found:
                yield [found.enter_context(one) for one in _connections(self._ours, self._theirs)]


def seal(ours: Collection[Listening]) -> int:
    """A socket that listens at one of `ours` takes no connection from now on; those that stand are as before. Returns
    how many there were.

    gloo listens for as long as its ring lives, and cannot be told that all members are there. So the kernel is told to
    drop what comes to that socket. Raises RingBroken where it will not.
    """
    found = 0
    for one in _sockets():
        with one:
            if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and one.getsockname()[:2] in ours:
                try:
                    _filter_out(one)
                except OSError as error:  # newer kernels let only root filter what comes to a socket of TCP
                    _ask_for_signatures(one, error)
                found += 1
    return found


def _filter_out(listening: socket.socket) -> None:
    drop = struct.pack("HL", 1, ctypes.addressof(_RETURN_NOTHING))  # struct sock_fprog
    listening.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, drop)


def _ask_for_signatures(listening: socket.socket, unfiltered: OSError) -> None:
    """Each segment that comes to it is to be signed with a key that no peer has. Root is not needed for that."""
    peer = struct.pack("=H126x", listening.family)  # struct sockaddr_storage
    key = secrets.token_bytes(80)
    demand = peer + struct.pack("=BBHi", _OF_ALL_PEERS, 0, len(key), 0) + key  # struct tcp_md5sig
    try:
        listening.setsockopt(socket.IPPROTO_TCP, TCP_MD5SIG_EXT, demand)
    except OSError as error:
        raise RingBroken(
            "the kernel does not close the ring's port to strangers: it takes neither a filter "
            f"({unfiltered.strerror}; root may set one) nor signatures of TCP ({error.strerror})"
        ) from error


def _connections(ours: Collection[Listening], theirs: Collection[Listening]) -> Iterator[socket.socket]:
    """For the caller to close."""
    for one in _sockets():
        try:
            is_theirs = one.getpeername()[:2] in theirs or one.getsockname()[:2] in ours
        except OSError:  # it listens, or is not connected any more
            is_theirs = False
        if is_theirs:
            yield one
        else:
            one.close()


def _sockets() -> Iterator[socket.socket]:
    """All of TCP, each once, by a descriptor of our own, for the caller to close."""
    for descriptor in _listed().values():
        with contextlib.suppress(OSError):  # closed since
            duplicate = socket.socket(type=AS_IT_IS, fileno=os.dup(descriptor))
            if duplicate.family in {socket.AF_INET, socket.AF_INET6}:
                yield duplicate
            else:
                duplicate.close()


def _listed() -> dict[str, int]:
    """Each socket's name of the kernel's, and one of its descriptors."""
    found = dict[str, int]()
    for entry in DESCRIPTORS.iterdir():
        with contextlib.suppress(OSError):  # of the listing itself, or closed since
            name = str(entry.readlink())
            if name.startswith("socket:"):
                found[name] = int(entry.name)
    return found


def _lives(connection: socket.socket) -> bool:
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
