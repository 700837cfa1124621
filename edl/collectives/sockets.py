"""Connections of this process that a library holds, known by the addresses at their ends.

Owns: finding, counting and cutting them, and taking no more. Does not own: which addresses those are
(`edl.torch.process_groups`).

gloo hands out none of its connections. But it listens at one address for each ring, and it knows at which the other
members do: what has the first on this end, or one of the others on the far end, is the ring's, and nothing of the
script's is. A connection is looked at and cut by a descriptor of our own, so that none is mistaken which came into
being meanwhile under the same number. To look through all descriptors of a process takes milliseconds: once all
connections of a ring stand, it is known which they are.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import secrets
import socket
import struct
import threading
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from edl.errors import RingBroken

Listening = tuple[str, int]

DESCRIPTORS = Path("/proc/self/fd")
AS_IT_IS = socket.SOCK_STREAM | socket.SOCK_NONBLOCK  # else a default time-out of the script would become its own
SO_ATTACH_FILTER = 26
TCP_MD5SIG_EXT = 32
_AT_ACKED = 120  # in struct tcp_info of linux/tcp.h
_ACKED_AND_RECEIVED = struct.Struct("=QQ")
_RETURN_NOTHING = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, 0))  # BPF_RET | BPF_K, no bytes
_OF_ALL_PEERS = 1  # TCP_MD5SIG_FLAG_PREFIX, of no bits


class Descriptor(NamedTuple):
    """A socket, by its descriptor; `inode` tells whether the number still means the same socket."""

    number: int
    inode: int

    @contextlib.contextmanager
    def opened(self) -> Iterator[socket.socket]:
        """Open the socket by a descriptor of our own. Raises OSError if it was closed since."""
        own = os.dup(self.number)
        try:
            if os.fstat(own).st_ino != self.inode:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            found = socket.socket(type=AS_IT_IS, fileno=own)
        except OSError:
            os.close(own)
            raise
        with found:
            yield found


class Connections:
    """Connections of one ring. Any thread may use them."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._ours: set[Listening] = set()
        self._theirs: set[Listening] = set()
        self._settled: list[Descriptor] | None = None  # once all stand

    def know(self, listening: Listening, *, own: bool) -> None:
        """Add an address at which this process (`own`) or another member listens."""
        with self._turn:
            (self._ours if own else self._theirs).add(listening)

    def settle(self) -> None:
        """Take no further connections: all stand, but for those that a member has ended already. Raises RingBroken."""
        with self._turn:
            seal(self._ours)
            self._settled = self._found()

    def cut(self) -> int:
        """Shut down all connections. Return how many.

        What listens stays: gloo's loop ends the process when that fails.
        """
        return self._shut_down(socket.SHUT_RDWR)

    def end(self) -> int:
        """Announce on all connections that nothing more will be sent. Return how many."""
        return self._shut_down(socket.SHUT_WR)

    def living(self) -> int:
        """Count the connections that the other side has not ended, as far as received data has been read."""
        return sum(map(_lives, self._all()))

    def bytes(self) -> int:
        return sum(map(_bytes_of, self._all()))

    def _shut_down(self, way: int) -> int:
        found = 0
        for one in self._all():
            with contextlib.suppress(OSError), one.opened() as connection:  # the other side was first
                connection.shutdown(way)
                found += 1
        return found

    def _all(self) -> list[Descriptor]:
        with self._turn:
            return self._found() if self._settled is None else self._settled

    def _found(self) -> list[Descriptor]:
        return [one for one in _listed() if _is_among(one, self._ours, self._theirs)]


def seal(ours: Collection[Listening]) -> int:
    """Stop the sockets that listen at `ours` from accepting; connections that stand remain. Return how many sockets.

    gloo listens for as long as its ring lives, and cannot be told that all members are there. So the kernel is told to
    drop what comes to that socket. Raises RingBroken where it will not.
    """
    found = 0
    for one in _listed():
        with contextlib.suppress(OSError), one.opened() as listening:  # it was closed since
            if _listens_at(listening, ours):
                _take_none(listening)
                found += 1
    return found


def _listens_at(one: socket.socket, ours: Collection[Listening]) -> bool:
    return bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)) and one.getsockname()[:2] in ours


def _take_none(listening: socket.socket) -> None:
    try:
        _filter_out(listening)
    except OSError as error:  # newer kernels let only root filter what comes to a socket of TCP
        _ask_for_signatures(listening, error)


def _filter_out(listening: socket.socket) -> None:
    drop = struct.pack("HL", 1, ctypes.addressof(_RETURN_NOTHING))  # struct sock_fprog
    listening.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, drop)


def _ask_for_signatures(listening: socket.socket, unfiltered: OSError) -> None:
    """Require a signature on each segment, with a key that no peer has. This works without root."""
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


def _is_among(one: Descriptor, ours: Collection[Listening], theirs: Collection[Listening]) -> bool:
    with contextlib.suppress(OSError), one.opened() as found:  # it listens, or is not connected any more
        if found.family in {socket.AF_INET, socket.AF_INET6}:
            return found.getpeername()[:2] in theirs or found.getsockname()[:2] in ours
    return False


def _listed() -> list[Descriptor]:
    """List the sockets of this process, each once."""
    found = dict[int, Descriptor]()
    for entry in DESCRIPTORS.iterdir():
        with contextlib.suppress(OSError):  # of the listing itself, or closed since
            kind, _, inode = str(entry.readlink()).partition(":")
            if kind == "socket":
                found[int(inode.strip("[]"))] = Descriptor(int(entry.name), int(inode.strip("[]")))
    return list(found.values())


def _bytes_of(one: Descriptor) -> int:
    with contextlib.suppress(OSError), one.opened() as connection:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKED_AND_RECEIVED.size + _AT_ACKED)
        if len(info) == _ACKED_AND_RECEIVED.size + _AT_ACKED:  # kernels before 4.1 do not count them
            return sum(_ACKED_AND_RECEIVED.unpack_from(info, _AT_ACKED))
    return 0


def _lives(one: Descriptor) -> bool:
    try:
        with one.opened() as connection:
            return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
