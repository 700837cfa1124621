"""Requests to a process that forks (`edl.host.warm_process`), from a launcher or agent for workers, from a trainer for
its daemon.

Owns: how a fork is asked for, and that it is used by who has asked or ends. Does not own: what the fork becomes.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

FORK_S = 3.0  # for the answer of a process that does nothing else, on a busy machine


def send(to: socket.socket, kind: bytes, told: Mapping[str, Any], *descriptors: int) -> None:
    """Raises OSError. Several processes may send over one connection."""
    # A message may be long: it lies in memory, and only the number of that file is sent.
    file = os.memfd_create("edl-warm", os.MFD_CLOEXEC)
    try:
        text = memoryview(json.dumps(told).encode("utf-8", "surrogateescape"))
        while text:
            text = text[os.write(file, text) :]
        socket.send_fds(to, [kind], [file, *descriptors])
    finally:
        os.close(file)


def fork(
    to: socket.socket, told: Mapping[str, Any], streams: Sequence[int], is_good: Callable[[int], bool] = bool
) -> int:
    """Return the pid of a fork whose outputs are `streams`; 0 if no answer comes, or `is_good` rejects the pid."""
    try:
        answer, its = socket.socketpair()
        with answer:
            with its:
                send(to, b"f", told, *streams, its.fileno())
            pid = _read_pid(answer)
            if not pid or not is_good(pid):
                return 0
            answer.sendall(b"!")
            return pid
    except OSError:
        return 0


def _read_pid(answer: socket.socket) -> int:
    """Return the pid; 0 if the process ended before it was what it was asked to be."""
    answer.settimeout(FORK_S)
    line = b""
    while not line.endswith(b"\n"):
        if not (piece := answer.recv(32)):
            return 0
        line += piece
    return int(line)
