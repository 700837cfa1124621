"""A lock on a file, held until the process ends, for processes that share the file's folder, on this machine or
another.

Owns: the lock. Does not own: the meaning of the lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path


def hold(path: Path) -> None:
    """Hold the lock until this process ends, however it ends. Do nothing if another process holds it, or if the file
    system has no locks.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with contextlib.suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_held(path: Path) -> bool:
    """Tell whether any process holds the lock."""
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
