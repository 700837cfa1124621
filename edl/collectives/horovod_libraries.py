"""Horovod's native library for one framework, and independent copies of it.

Owns: what one of them is, and loading a copy. Does not own: which one Horovod's Python part calls
(`edl.collectives.horovod_python`), nor rings (`edl.collectives.horovod_engine`).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from edl.collectives.library_guard import Guard, private_copy


@dataclass(frozen=True)
class Native:
    """A loaded and guarded native library."""

    path: str
    calls: Any
    guard: Guard


@dataclass(frozen=True)
class Library:
    """A native library as its framework uses it. It may hold a ring."""

    native: Native
    take_turn: Callable[[], None]  # from now on, its framework's tensors go here
    forget: Callable[[], None]  # what is known of tensors of the ring that is left
    taker: Any = None  # of its framework's tensors: a module of PyTorch's, a number among TensorFlow's

    def shut_down(self) -> None:
        """Shut down as `hvd.shutdown()` does: all members of the ring have to, or one of them has to be cut off."""
        self.forget()
        self.native.calls.horovod_shutdown()


def nothing() -> None: ...


def copy_of(path: str, change: Callable[[bytes], bytes] = lambda contents: contents) -> Native:
    """Load a changed copy of the library at `path`. Raises OSError, ImportError."""
    copy = private_copy(path, change)
    # Horovod has made the first one's symbols global: without RTLD_DEEPBIND the copy would use those.
    calls = ctypes.CDLL(copy, mode=os.RTLD_NOW | os.RTLD_LOCAL | os.RTLD_DEEPBIND)
    native = Native(copy, calls, Guard(copy, copied=True))
    if not native.guard.whole:
        raise ImportError("a copy of Horovod's library is not guarded")
    return native
