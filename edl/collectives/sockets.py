"""Connections of this process that a library holds, known by the addresses at their ends.

Owns: finding, counting and cutting them, and taking no more. Does not own: which addresses those are
(`edl.torch.groups`).

gloo hands out none of its connections. But it listens at one address for each ring, and it knows at which the other
members do: what has the first on this end, or one of the others on the far end, is the ring's, and nothing of the
script's is. A connection is looked at and cut by a descriptor of our own, so that none is mistaken which came into
being meanwhile under the same number.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import socket
import struct
from collections.abc import Collection, Iterator
from pathlib import Path

from edl.errors import RingBroken

Listening = tuple[str, int]

DESCRIPTORS = Path("/proc/self/fd")
SO_ATTACH_FILTER = 26
TCP_MD5SIG_EXT = 32
_RETURN_NOTHING = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, 0))  # BPF_RET | BPF_K, no bytes
_OF_ALL_PEERS = 1  # TCP_MD5SIG_FLAG_PREFIX, of no bits


def cut(ours: Collection[Listening], theirs: Collection[Listening]) -> int:
    """Shut down all connections made at one of `ours`, or to one of `theirs`. From any thread. Returns how many.

    What listens stays: gloo's loop ends the process when that fails.
    """
    return _shut_down(ours, theirs, socket.SHUT_RDWR)


def end(ours: Collection[Listening], theirs: Collection[Listening]) -> int:
    """Say on all of them that nothing more will come from here, behind what did. From any thread. Returns how many."""
    return _shut_down(ours, theirs, socket.SHUT_WR)


def living(ours: Collection[Listening], theirs: Collection[Listening]) -> int:
    """How many of them the other side has not ended, as far as what came is read."""
    return sum(_lives(connection) for connection in _connections(ours, theirs))


def seal(ours: Collection[Listening]) -> int:
    """A socket that listens at one of `ours` takes no connection from now on; those that stand are as before. Returns
    how many there were.

    gloo listens for as long as its ring lives, and cannot be told that all members are there. So the kernel is told to
    drop what comes to that socket. Raises RingBroken where it will not.
    """
    found = 0
    for one in _sockets():
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


def _shut_down(ours: Collection[Listening], theirs: Collection[Listening], way: int) -> int:
    found = 0
    for connection in _connections(ours, theirs):
        with contextlib.suppress(OSError):  # the other side was first
            connection.shutdown(way)
            found += 1
    return found


def _connections(ours: Collection[Listening], theirs: Collection[Listening]) -> Iterator[socket.socket]:
    for one in _sockets():
        with contextlib.suppress(OSError):  # it listens, or is not connected any more
            if one.getpeername()[:2] in theirs or one.getsockname()[:2] in ours:
                yield one


def _sockets() -> Iterator[socket.socket]:
    """All of TCP, each by a descriptor that is closed behind it."""
    for entry in DESCRIPTORS.iterdir():
        with contextlib.suppress(OSError):  # of the listing itself, or closed since
            if not str(entry.readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as duplicate:
                if duplicate.family in {socket.AF_INET, socket.AF_INET6}:
                    yield duplicate


def _lives(connection: socket.socket) -> bool:
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
