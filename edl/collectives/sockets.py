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
import socket
import struct
from collections.abc import Collection, Iterator
from pathlib import Path

Listening = tuple[str, int]

DESCRIPTORS = Path("/proc/self/fd")
SO_ATTACH_FILTER = 26
_RETURN_NOTHING = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, 0))  # BPF_RET | BPF_K, no bytes


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
    drop what comes to that socket.
    """
    found = 0
    drop = struct.pack("HL", 1, ctypes.addressof(_RETURN_NOTHING))  # struct sock_fprog
    for one in _sockets():
        if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and one.getsockname()[:2] in ours:
            one.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, drop)
            found += 1
    return found


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
