"""The guard around Horovod's native library: `_guard.cpp`, which also tells what it guards against, and how.

Owns: finding and calling it. Does not own: when to hurry (`edl.collectives.engine`).
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.machinery
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from edl.collectives.copies import private_copy
from edl.collectives.patience import Pulse

logger = logging.getLogger("edl")

NAMES_BYTES = 4096  # of the tensors that wait; those of a large model are many, and a few say what is waited for


class _Pulse(ctypes.Structure):
    """The struct of this name in `_guard.cpp`."""

    _fields_ = (
        ("waiting", ctypes.c_int64),
        ("begun", ctypes.c_int64),
        ("turns", ctypes.c_int64),
        ("bytes", ctypes.c_int64),
    )


class Guard:
    """Around one of Horovod's libraries, which must be loaded, and which forms at most one ring at a time."""

    def __init__(self, library: str, *, copied: bool = False) -> None:
        """`copied`: another guard is there already, and this one shares nothing with it. Raises OSError then."""
        self._native = _load(copied=copied)
        found = 0 if self._native is None else self._native.edl_watch(library.encode())
        self.active = found > 0
        self.whole = self.active and found == self._native.edl_replacements()
        if not self.active:
            logger.debug("no guard around %s: if a peer dies while a ring forms, this process will, too", library)
        elif not self.whole:
            logger.debug("%s is not as the guard knows it", library)

    def start(self, attempt: int, init: Any, arguments: Sequence[Any]) -> bool | None:
        """Horovod's native start, by `init`, of this attempt to form a ring. Returns what it says; None: its thread
        ended first, of which `failure` tells.
        """
        if self._native is None:
            return bool(init(*arguments))
        said = self._native.edl_start(attempt, ctypes.cast(init, ctypes.c_void_p), *arguments)
        return None if said < 0 else bool(said)

    @contextlib.contextmanager
    def environment(self, values: Mapping[str, str | None]) -> Iterator[None]:
        """Inside, the library finds these in the environment, and nothing where it says None.

        Where the guard is whole, no other thread does, so that rings may form while others look, or form one as well.
        """
        if self.whole:
            for name, value in values.items():
                self._native.edl_set_variable(name.encode(), None if value is None else value.encode())
            yield
            return
        before = {name: os.environ.get(name) for name in values}
        _assign(values)
        try:
            yield
        finally:
            _assign(before)

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

    @property
    def hurries(self) -> bool:
        """The daemon said so, or a connection of the ring that stands has ended."""
        return self.whole and bool(self._native.edl_hurries())

    def cut(self) -> int:
        """Shut down all sockets that Horovod's library has open, and no others. From any thread. Returns how many.

        Without a guard it is not known which those are: then a stuck trainer waits for gloo's own time-out.
        """
        return 0 if self._native is None else int(self._native.edl_cut())

    def pulse(self) -> Pulse | None:
        """Tell from any thread what has moved in the ring that stands; None where that is not known."""
        found = _Pulse()
        if not self.whole or not self._native.edl_pulse(ctypes.byref(found), None, 0):
            return None
        return Pulse(found.waiting, found.begun, found.turns, found.bytes)

    def waiting(self) -> list[str]:
        """Names of tensors that not all members have come with; some of them, where they are many. Any thread."""
        if not self.whole:
            return []
        names = ctypes.create_string_buffer(NAMES_BYTES)
        self._native.edl_pulse(ctypes.byref(_Pulse()), names, NAMES_BYTES)
        return names.value.decode(errors="replace").splitlines()

    def set_spin(self, seconds: float, settling_s: float = 0.0) -> None:
        """A thread that waits longer than this for a collective naps between two looks. In a ring that begins it naps
        after a millisecond: so long, from its first wait on.
        """
        if self._native is not None:
            times = (ctypes.c_int64(round(1e9 * one)) for one in (seconds, settling_s))
            self._native.edl_set_spin(*times)

    def set_standing(self, standing: bool) -> None:
        """While a ring stands, a connection that ends brings a hurry."""
        if self._native is not None:
            self._native.edl_set_standing(int(standing))

    @contextlib.contextmanager
    def awaited(self) -> Iterator[None]:
        """Inside, a ring forms that its members wait for, and gloo's loop takes a turn each millisecond."""
        if self._native is None:
            yield
            return
        self._native.edl_set_awaited(1)
        try:
            yield
        finally:
            self._native.edl_set_awaited(0)


def plain(message: str) -> str:
    """What gloo and Horovod say, without the places in gloo's sources where it says so, without Horovod's guesses at
    what may have shut it down, and without asking to look above. Where a hurry has ended its wait, gloo says that its
    whole time-out is over: the length is left out.
    """
    if re.search(r"HTTP (\w+ )?request failed", message):
        return "its daemon did not answer"
    message = re.sub(r"Timed out waiting \d+ms for (recv|send) operation to complete", "no answer of a peer", message)
    return re.sub(r"\[/[^\]]*:\d+\] *| This was caused by an exception on one of the ranks[^\n]*", "", message)


def _load(*, copied: bool) -> Any:
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(f"_guard{suffix}")
        if path.exists():
            native = ctypes.CDLL(private_copy(str(path)) if copied else str(path))
            if not hasattr(native, "edl_pulse"):
                logger.warning("%s is of another edl than this: install it again (in a checkout, scripts/setup)", path)
                return None
            native.edl_failure.restype = ctypes.c_char_p
            return native
    return None


def _assign(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
