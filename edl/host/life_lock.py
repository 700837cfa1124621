"""A lock in shared memory that a process holds until it dies, so that another process learns of the death early.

The pidfd and the connections of a killed process report its death only once its memory is given back: 15 to 50 ms later
for a trainer with PyTorch, seconds for one with many gigabytes. The kernel releases a robust mutex
(pthread_mutexattr_setrobust) before that, as its very first act. Where there is no robust mutex, the pidfd reports the
death, later.

Owns: both sides of the lock. Does not own: what follows from a death, nor whether the whole process is dead
(`edl.host.host_processes`).
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import logging
import mmap
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edl.host.host_processes import is_ending

logger = logging.getLogger("edl")

LIFE = "life"  # file of the trainer's lock, in the folder that it shares with its daemon
LOCK_BYTES = 64  # of a pthread_mutex_t, at most
SHARED, ROBUST = 1, 1  # PTHREAD_PROCESS_SHARED, PTHREAD_MUTEX_ROBUST
LOOKS, LOOK_S = 20, 0.001  # the kernel ends a process thread by thread


def hold_for_life(path: Path) -> None:
    """Hold the lock from now on, in a thread that does nothing else. Call it once per process."""
    lock = _mapped(path, create=True)
    held = threading.Event()
    threading.Thread(target=_hold, args=(lock, held), name="edl-alive", daemon=True).start()
    held.wait()


def watch_life(path: Path, pid: int, on_death: Callable[[int], None]) -> None:
    """Call `on_death(pid)` on the running loop once the process that holds the lock dies, if the
    system reports that.
    """
    loop = asyncio.get_running_loop()
    arguments = (path, pid, lambda: loop.call_soon_threadsafe(on_death, pid))
    threading.Thread(target=_watch, args=arguments, name="edl-watching", daemon=True).start()


def _hold(lock: Any, held: threading.Event) -> None:
    try:
        libc, attributes = ctypes.CDLL(None), ctypes.create_string_buffer(LOCK_BYTES)
        with contextlib.suppress(AttributeError):  # a C library without robust mutexes: nothing holds the lock
            libc.pthread_mutexattr_init(attributes)
            libc.pthread_mutexattr_setpshared(attributes, SHARED)
            libc.pthread_mutexattr_setrobust(attributes, ROBUST)
            libc.pthread_mutex_init(lock, attributes)
            libc.pthread_mutex_lock(lock)
    finally:
        held.set()
    threading.Event().wait()


def _watch(path: Path, pid: int, tell: Callable[[], object]) -> None:
    try:
        lock = _mapped(path, create=False)
    except (OSError, ValueError) as error:  # the file was removed together with its process's folder
        logger.debug("no early word of the trainer's death: %s", error)
        return
    if ctypes.CDLL(None).pthread_mutex_lock(lock) == errno.EOWNERDEAD and _ends(pid):
        with contextlib.suppress(RuntimeError):  # the loop is over, and the daemon with it
            tell()


def _ends(pid: int) -> bool:
    """Tell whether the process ends, now that the thread that held the lock is gone: the process goes on if another of
    its threads has called exec().
    """
    for _ in range(LOOKS):
        if is_ending(pid):
            return True
        time.sleep(LOOK_S)
    return False


def _mapped(path: Path, *, create: bool) -> Any:
    """Map the lock in the file at `path`. Raises OSError, ValueError."""
    descriptor = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o600)
    try:
        if create:
            os.ftruncate(descriptor, LOCK_BYTES)
        memory = mmap.mmap(descriptor, LOCK_BYTES)
    finally:
        os.close(descriptor)
    return (ctypes.c_char * LOCK_BYTES).from_buffer(memory)
