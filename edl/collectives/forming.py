"""Forming a ring: Horovod's native start, under a deadline, without holding up the interpreter.

Owns: the call of `horovod_init`, its deadline, and surviving its failure. Does not own: the environment that it reads
(`edl.collectives.horovod`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from edl.errors import RingBroken

GRACE_S = 5.0  # from cutting the connections to the end of the native call


class Forming:
    """One attempt to form a ring. The native call runs in a thread of its own, so that a stuck one can be given up."""

    def __init__(self, basics: Any, timeout_s: float, abort: Callable[[], None]) -> None:
        self._native = basics.MPI_LIB_CTYPES
        self._timeout_s = timeout_s
        self._abort = abort
        self._done = threading.Event()
        self._formed = False

    def wait(self) -> None:
        """Returns once the ring is formed. Raises RingBroken."""
        threading.Thread(target=self._form, name="edl-forming", daemon=True).start()
        if not self._done.wait(self._timeout_s):
            self._abort()
            self._done.wait(GRACE_S)
        if not self._formed:
            raise RingBroken(f"the ring did not form within {self._timeout_s:g} s")

    def _form(self) -> None:
        self._formed = bool(self._native.horovod_init(None, 0, None, None, 0))
        self._done.set()
