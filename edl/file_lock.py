"""A lock on a file, for processes that share the file's folder, on this machine or another.

Owns: the lock, which the kernel frees with its process at the latest. Does not own: the meaning of the lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

_POLL_S = 0.025  # the kernel tells when a lock is free only to those who wait without a bound


def open_lock(path: Path) -> int:
    """Open the file of a lock, which is made for this user only if it is missing; closing it frees the lock."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def take(file: int, patience_s: float = 0.0) -> bool:
    """Take the lock of an open file; return False if another process holds it for all that time. Raises OSError where
    the file system has no locks.
    """
    until = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(_POLL_S)
        else:
            return True


@contextlib.contextmanager
def turn(file: int) -> Iterator[None]:
    """Wait for the lock of an open file, hold it, and close the file."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def hold(path: Path) -> None:
    """Hold the lock until this process ends, however it ends. Do nothing if another process holds it, or if the file
    system has no locks.
    """
    file = open_lock(path)
    with contextlib.suppress(OSError):
        take(file)


def is_held(path: Path) -> bool:
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # a shared lock: other processes that only ask do not count
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(file)
    return False
