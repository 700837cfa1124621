"""The sockets of this process, so that those of the ring can be told from all others and cut.

Owns: finding and shutting down TCP connections of this process.
Does not own: when to do so (`edl.collectives.horovod`).

A socket is known by its inode, never by its number: a number is given out again as soon as it is free, perhaps to
somebody else's connection.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

OWN_DESCRIPTORS = Path("/proc/self/fd")


def tcp_sockets() -> frozenset[int]:
    """All TCP sockets of this process, listening ones too: what a ring is made of, and a daemon's link is not."""
    return frozenset(inode for number, inode in _open_sockets() if _is_tcp(number))


def cut(inodes: frozenset[int]) -> int:
    """Shut down those sockets, from any thread; whoever uses them sees the end. Returns how many."""
    return sum(_shut_down(number, inode) for number, inode in _open_sockets() if inode in inodes)


def _is_tcp(number: int) -> bool:
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as duplicate:
        return duplicate.family in {socket.AF_INET, socket.AF_INET6} and duplicate.type == socket.SOCK_STREAM
    return False


def _open_sockets() -> Iterator[tuple[int, int]]:
    for entry in OWN_DESCRIPTORS.iterdir():
        with contextlib.suppress(OSError):  # closed since it was listed
            status = os.fstat(int(entry.name))
            if stat.S_ISSOCK(status.st_mode):
                yield int(entry.name), status.st_ino


def _shut_down(number: int, inode: int) -> bool:
    """Works on a duplicate whose inode is looked at again: meanwhile the number may have become another socket."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as duplicate:
        if os.fstat(duplicate.fileno()).st_ino == inode:
            duplicate.shutdown(socket.SHUT_RDWR)  # ends the connection for the original descriptor too
            return True
    return False
