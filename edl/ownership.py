"""The process that owns edl's handlers and connections: the process that has called `init()`, and no child of it.

A forked child inherits copies of the parent's signal handlers, exit handlers and connections. If the child used them,
they would end the parent's ring, or keep the child from ending. A child that multiprocessing spawns inherits nothing,
and imports the script, which may call `init()` as it is imported.

Owns: exit handlers that only the owner runs, the calls that a forked child makes as it begins, and whether a spawned
one still imports the script. Does not own: any of those acts.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import sys
from collections.abc import Callable
from typing import Final

FORKED: Final = (
    "this process was forked by the one that called edl.init(), and is no worker of the job: call edl in that one, and "
    "give the child what it needs (rank(), size(), step() and the like tell here what was so when it was forked)"
)

SPAWNED: Final = (
    "multiprocessing has started this process from a script that calls edl.init() as it is imported, and it is no "
    'worker of the job: use edl under `if __name__ == "__main__":`, and give the child what it needs; a process that '
    "is to be a worker calls edl.init() in its function"
)

_owner: int | None = None
_spawned = False
_in_children: list[Callable[[], object]] = []


def claim() -> None:
    """Make this process the owner of everything that edl registers here, before this call and after."""
    global _owner, _spawned
    _owner, _spawned = os.getpid(), False


def disown_spawned() -> bool:
    """Leave this process without an owner if multiprocessing is still preparing it, from its parent's script. Return
    whether that is so.
    """
    global _spawned  # noqa: PLW0603 - a process has one owner, as it has one seat
    module = sys.modules.get("multiprocessing.process")
    if module is None or not getattr(module.current_process(), "_inheriting", False):
        return False
    _spawned = True
    return True


def refusal() -> str:
    """Say why a call is refused in this process, which is no worker."""
    return SPAWNED if _spawned else FORKED


def in_children(act: Callable[[], object]) -> None:
    """Register `act` to be called first of all in each process that the owner forks."""
    _in_children.append(act)


def at_exit(act: Callable[[], object]) -> None:
    """Register `act` as `atexit.register` does; no child that inherits the entry calls it."""
    atexit.register(_call_as_owner, os.getpid(), act)


def skip_destructors() -> None:
    """Let a child exit with its own status without running the destructors of native libraries on inherited state."""
    libc = ctypes.CDLL(None)
    with contextlib.suppress(AttributeError):  # a C library that tells no status at the end: its destructors are called
        libc.on_exit(libc._exit, None)  # before all that was registered before, and instead of that
        libc.__cxa_atexit(libc.fflush, None, None)  # and before this one: what C has still to write


def _call_as_owner(registrant: int, act: Callable[[], object]) -> None:
    if os.getpid() in {_owner, registrant}:
        act()


def _begin_child() -> None:
    acts = [] if _owner is None else list(_in_children)
    # This child gives up the inherited state below, so its own children have none left to give up.
    _in_children.clear()
    for act in acts:
        act()


os.register_at_fork(after_in_child=_begin_child)
