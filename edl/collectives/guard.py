"""The guard around Horovod's native library: `_guard.cpp`, which also tells what it guards against, and how.

Owns: finding and calling it. Does not own: when to hurry (`edl.collectives.horovod`).
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import logging
import re
from pathlib import Path
from typing import Any

logger = logging.getLogger("edl")


class Guard:
    """Around one of Horovod's libraries, which must be loaded. A process forms at most one ring at a time."""

    def __init__(self, library: str) -> None:
        self._native = _load()
        self.active = self._native is not None and self._native.edl_watch(library.encode()) > 0
        if not self.active:
            logger.debug("no guard around %s: if a peer dies while a ring forms, this process will, too", library)
        elif self._native.edl_watch(library.encode()) < self._native.edl_replacements():
            logger.debug("%s is not as the guard knows it", library)

    def arm(self, attempt: int) -> None:
        """The calling thread is about to start this attempt to form a ring."""
        if self._native is not None:
            self._native.edl_arm(attempt)

    def set_host(self, address: str) -> None:
        """Where the rings that form from now on listen, whatever this host's name resolves to."""
        if self._native is not None:
            self._native.edl_set_host(address.encode())

    def failure(self, attempt: int) -> str | None:
        """Why the thread of this attempt ended, None while it has not."""
        what = self._native.edl_failure(attempt) if self._native is not None else None
        return None if what is None else plain(what.decode(errors="replace"))

    def set_hurry(self, hurry: bool) -> None:
        """In a hurry, whatever Horovod's and gloo's threads wait for has timed out. From any thread."""
        if self._native is not None:
            self._native.edl_set_hurry(int(hurry))

    def cut(self) -> int:
        """Shut down all sockets that Horovod's library has open, and no others. From any thread. Returns how many.

        Without a guard it is not known which those are: then a stuck trainer waits for gloo's own time-out.
        """
        return 0 if self._native is None else int(self._native.edl_cut())

    def set_standing(self, standing: bool) -> None:
        """While a ring stands, a connection that ends brings a hurry."""
        if self._native is not None:
            self._native.edl_set_standing(int(standing))


def plain(message: str) -> str:
    """What gloo says, without the places in its sources where it says so, and without asking to look above."""
    if re.search(r"HTTP (\w+ )?request failed", message):
        return "its daemon did not answer"
    return re.sub(r"\[/[^\]]*:\d+\] *", "", message)


def _load() -> Any:
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(f"_guard{suffix}")
        if path.exists():
            native = ctypes.CDLL(str(path))
            if not hasattr(native, "edl_cut"):
                logger.warning("%s is of another edl than this: install it again (in a checkout, scripts/setup)", path)
                return None
            native.edl_failure.restype = ctypes.c_char_p
            return native
    return None
