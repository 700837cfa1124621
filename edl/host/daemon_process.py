"""Start of a worker's daemon: its command and environment, and the fork that is one already.

A worker that was forked has a connection to a process that has imported what daemons do, and no more than that: a
daemon does not share the trainer's memory, and a trainer has none of a daemon's libraries.

Owns: the command, the environment, whether a daemon may be forked, and how a process that forks
(`edl.host.warm_process`) is asked for a daemon or a worker. Does not own: that process (`edl.launch.forking`), nor a
daemon's life (`edl.trainer.daemon_link`).
"""

from __future__ import annotations

import json
import os
import socket
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import edl

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


MODULE = "edl.daemon.daemon"
COMMAND = ("-P", "-m", MODULE)  # of Python, without the daemon's arguments
READ_AT_BEGIN = ("PYTHON", "GRPC_", "LD_", "MALLOC_", "GLIBC_", "LANG", "LC_", "TZ")  # by a process as it begins


def environ_of(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the daemon of a trainer that has this one."""
    paths = [str(Path(edl.__file__).parents[1]), environ.get("PYTHONPATH", "")]
    quiet = {"GRPC_VERBOSITY": "NONE"}  # else it logs what strangers send, byte for byte (I10); read when imported
    return {**quiet, **environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


class Forker:
    """A connection to the process that forks this worker's daemons, which it has from its own fork."""

    def __init__(self, connection: int) -> None:
        """Call it before the worker's script runs, which may change the environment."""
        self._connection = connection
        self._inode = os.fstat(connection).st_ino
        self._environ = _read_at_begin(os.environ)

    def fork(self, arguments: Sequence[str], environ: Mapping[str, str], log: Path) -> int:
        """Return the daemon's pid; 0 if a new process is to be started instead."""
        if _read_at_begin(environ) != _read_at_begin(environ_of(self._environ)) or not self._is_open():
            return 0
        command = [sys.executable, *COMMAND, *arguments]
        told = {"kind": "module", "name": MODULE, "arguments": list(arguments), "shown": command, "daemon": True}
        try:
            folder = str(Path.cwd())
            told |= {"folder": folder, "environ": {**environ, "PWD": folder}}  # as the shell of a new process has it
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError:
            return 0
        try:
            with socket.fromfd(self._connection, socket.AF_UNIX, socket.SOCK_STREAM) as to:
                return fork(to, told, [output, output])
        except OSError:
            return 0
        finally:
            os.close(output)

    def _is_open(self) -> bool:
        """Tell whether the script has left that descriptor alone."""
        try:
            seen = os.fstat(self._connection)
        except OSError:
            return False
        return stat.S_ISSOCK(seen.st_mode) and seen.st_ino == self._inode


forker: Forker | None = None  # of this process; set by `edl.host.warm_process`


def fork_daemon(arguments: Sequence[str], environ: Mapping[str, str], log: Path) -> int:
    """Return the daemon's pid; 0 if a new process is to be started instead."""
    return 0 if forker is None else forker.fork(arguments, environ, log)


def _read_at_begin(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith(READ_AT_BEGIN)}
