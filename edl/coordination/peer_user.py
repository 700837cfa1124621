"""The user of the process at the other end of a TCP connection within this machine, as the kernel knows it.

Owns: asking the kernel. Does not own: what follows from the answer. `_gate.c` asks the same in a server's process.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time

_FAMILY, _BY_FAMILY, _REQUEST, _NO_COOKIE = 4, 20, 1, b"\xff" * 8  # <linux/netlink.h>, <linux/sock_diag.h>
_HEAD = struct.Struct("=IHHII")
_BODY = struct.Struct("=BBxxI")
_USER_AND_INODE = struct.Struct("=II")
_AT = _HEAD.size + 4 + 48 + 12  # offset of the user in an answer: after states, both ends, and three numbers
_LOOK_AGAIN_S = 0.002


class ForeignServer(OSError):
    """The port belongs to another user's server, which took it while ours was down."""

    def __init__(self, user: int) -> None:
        super().__init__(f"another user's server, uid {user}, has taken its port: have that user free it")
        self.user = user


def check_server(connection: socket.socket, user: int, patience_s: float) -> None:
    """Return once a process of `user`, or of root, has accepted the connection, or if the kernel cannot tell.

    A connection that no server has accepted yet belongs to no process. Raises ForeignServer, TimeoutError.
    """
    until = time.monotonic() + patience_s
    while (found := _owner(connection.family, connection.getpeername()[:2], connection.getsockname()[:2])) is not None:
        owner, inode = found
        if inode and owner in {user, 0}:
            return
        if inode:
            raise ForeignServer(owner)
        if time.monotonic() > until:
            raise TimeoutError("the server does not take the connection")
        time.sleep(_LOOK_AGAIN_S)


def _owner(family: int, here: tuple[str, int], there: tuple[str, int]) -> tuple[int, int] | None:
    """Ask the kernel for user and inode of the socket whose own end is `here` and whose peer is `there`; None if there
    is no such socket, or the kernel does not answer.
    """
    ends = struct.pack("!HH", here[1], there[1])
    ends += b"".join(_packed(family, address).ljust(16, b"\0") for address, _ in (here, there))
    request = _BODY.pack(family, socket.IPPROTO_TCP, 0xFFFF_FFFF) + ends + bytes(4) + _NO_COOKIE
    with contextlib.suppress(OSError), socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _FAMILY) as kernel:
        kernel.settimeout(1.0)
        kernel.send(_HEAD.pack(_HEAD.size + len(request), _BY_FAMILY, _REQUEST, 1, 0) + request)
        answer = kernel.recv(8192)
        if _HEAD.unpack_from(answer)[1] == _BY_FAMILY:
            user, inode = _USER_AND_INODE.unpack_from(answer, _AT)
            return user, inode
    return None


def _packed(family: int, address: str) -> bytes:
    return socket.inet_pton(family, address.partition("%")[0])
