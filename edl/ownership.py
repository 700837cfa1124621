"""Which process owns what edl keeps: the one that has called `init()`, and none of the children that it forks.

A forked child has copies of the parent's handlers, of what is to be done at its end, and of its connections. Used in
the child, they would end the parent's ring, or keep the child from ending.

Owns: what is done at the end of the owner alone, and what a child does as it begins. Does not own: any of those acts.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
from collections.abc import Callable
from typing import Final

FORKED: Final = (
    "this process was forked by the one that called edl.init(), and is no worker of the job: call edl in that one, and "
    "give the child what it needs (rank(), size(), step() and the like tell here what was so when it was forked)"
)

_owner: int | None = None
_in_children: list[Callable[[], object]] = []


def claim() -> None:
    """This process joins a job: what edl keeps from now on, and has kept so far, is its own."""
    global _owner  # noqa: PLW0603 - a process has one owner, as it has one seat
    _owner = os.getpid()


def in_children(act: Callable[[], object]) -> None:
    """Have each child that the owner forks call `act` before anything else."""
    _in_children.append(act)


def at_exit(act: Callable[[], object]) -> None:
    """Register `act` as `atexit.register` does; no child that inherits the entry calls it."""
    atexit.register(_call_as_owner, os.getpid(), act)


def skip_destructors() -> None:
    """Let a child end, by its own status, without a native library taking down what the child has inherited."""
    libc = ctypes.CDLL(None)
    with contextlib.suppress(AttributeError):  # a C library that tells no status at the end: its destructors are called
        libc.on_exit(libc._exit, None)  # before all that was registered before, and instead of that
        libc.__cxa_atexit(libc.fflush, None, None)  # and before this one: what C has still to write


def _call_as_owner(registrant: int, act: Callable[[], object]) -> None:
    if os.getpid() in {_owner, registrant}:
        act()


def _begin_child() -> None:
    acts = [] if _owner is None else list(_in_children)
    _in_children.clear()  # its own children have the same to leave alone, and it is left alone by now
    for act in acts:
        act()


os.register_at_fork(after_in_child=_begin_child)
