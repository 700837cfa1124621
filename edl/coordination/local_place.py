"""The resources of a local server on this machine: a folder, a lock on it, and a port.

Owns: that the folder belongs to this user alone and to one server at a time, and which ports may be used. Does not own:
servers.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import socket
from pathlib import Path

from edl.errors import ConfigError
from edl.file_lock import open_lock, take

LOOPBACK = "127.0.0.1"
LOCK = "lock"  # the file's name in a folder

_LOCK_S = 3.0
_LOWEST_PORT = 20_000


def free_port(address: str = LOOPBACK) -> int:
    """Return a port of that address on which no process listens.

    Ports that the kernel gives to outgoing connections are excluded: a client that keeps trying a dead server on such a
    port will in time be given that very port, connect to itself, and keep the server from coming back.
    """
    highest = _first_ephemeral_port() - 1
    for _ in range(100):
        port = random.randint(_LOWEST_PORT, highest) if highest > _LOWEST_PORT else 0  # noqa: S311
        with socket.socket() as probe:
            try:
                probe.bind((address, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise ConfigError(f"no free port between {_LOWEST_PORT} and {highest} on {address}")


def _first_ephemeral_port() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        return 32_768


def private_folder(folder: Path) -> Path:
    """Create the folder for this user only; return its absolute path."""
    folder = folder.resolve()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    return folder


async def lock_folder(folder: Path, name: str) -> int:
    """Lock the folder, and return the lock's file descriptor. The server inherits the lock, which so outlives a killed
    launcher. ZooKeeper itself takes no lock, and etcd would wait for its own.

    A server that was just killed holds its lock until its last thread is gone, so this waits up to `_LOCK_S`.
    """
    descriptor = open_lock(folder / LOCK)
    try:
        async with asyncio.timeout(_LOCK_S):
            while not take(descriptor):  # noqa: ASYNC110 - the kernel does not tell when a lock is free
                await asyncio.sleep(0.05)
    except BaseException as error:
        os.close(descriptor)
        if not isinstance(error, TimeoutError):
            raise
        raise ConfigError(f"another local {name} runs in {folder}: stop that job, or use another folder") from None
    return descriptor


def is_same(descriptor: int, path: Path) -> bool:
    """Tell whether the path still leads to this open file or folder. While it is open no other has its number."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


def check_free(address: str, port: int) -> None:
    """Raises ConfigError where a server cannot listen."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            reason = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
            raise ConfigError(f"port {port} on {address} {reason}: name another, or none to have one chosen") from error
