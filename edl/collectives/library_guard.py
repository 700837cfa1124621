"""The guard around Horovod's native library: `_guard.cpp`, which also tells what it guards against, and how.

Owns: finding and calling it, and private copies of a library. Does not own: loading a copy
(`edl.collectives.horovod_libraries`), nor when to hurry (`edl.collectives.horovod_engine`).
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.machinery
import logging
import os
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from edl.collectives.ring_port import Pulse

_HEAD = struct.Struct("<4sBB10xHHIQQQIHHHHHH")  # of an ELF file of 64 bits
_PART = struct.Struct("<IIQQQQQQ")
_IS_LOADED = 1


def private_copy(path: str, change: Callable[[bytes], bytes] = lambda contents: contents) -> str:
    """Return the path of a copy in memory, which the loader takes for another library, with its own variables and
    threads. It lasts as long as this process. Raises OSError, and as `change` does.

    The copy must be another file, as the loader recognizes hard links. It stays open, as the loader also knows
    libraries by their paths: a reused descriptor number would name another library.
    """
    contents = change(_loaded_part(Path(path)))
    descriptor = os.memfd_create(f"edl-{Path(path).name}")
    os.truncate(descriptor, len(contents))
    with os.fdopen(descriptor, "wb", closefd=False) as copy:
        copy.write(contents)
    return f"/proc/self/fd/{descriptor}"


def _loaded_part(path: Path) -> bytes:
    # Nearly all of Horovod's 60 MB is debugging data, which lies behind the segments that are loaded.
    with path.open("rb") as file:
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size or head[:6] != b"\x7fELF\x02\x01":
            raise OSError(f"{path} is no library of 64 bits")
        first, number = (_HEAD.unpack(head)[index] for index in (7, 12))
        file.seek(first)
        parts = list(_PART.iter_unpack(file.read(number * _PART.size)))
        end = max(part[2] + part[5] for part in parts if part[0] == _IS_LOADED)
        file.seek(0)
        return file.read(end)


logger = logging.getLogger("edl")

NAMES_BYTES = 4096  # of the tensors that wait; those of a large model are many, and a few say what is waited for


class _Pulse(ctypes.Structure):
    _fields_ = (
        ("waiting", ctypes.c_int64),
        ("begun", ctypes.c_int64),
        ("turns", ctypes.c_int64),
        ("bytes", ctypes.c_int64),
    )


class Guard:
    """Guard around one of Horovod's libraries, which must be loaded. The library forms at most one ring at a time."""

    def __init__(self, library: str, *, copied: bool = False) -> None:
        """Share nothing with the guards that exist, if `copied`. Raises OSError if that fails."""
        self._native = _load(copied=copied)
        found = 0 if self._native is None else self._native.edl_watch(library.encode())
        self.active = found > 0
        self.whole = self.active and found == self._native.edl_replacements()
        if not self.active:
            logger.debug("no guard around %s: if a peer dies while a ring forms, this process will, too", library)
        elif not self.whole:
            logger.debug("%s is not as the guard knows it", library)

    def start(self, attempt: int, init: Any, arguments: Sequence[Any]) -> bool | None:
        """Call Horovod's native `init`. Return its answer; None if its thread ended first: see `failure`."""
        if self._native is None:
            return bool(init(*arguments))
        said = self._native.edl_start(attempt, ctypes.cast(init, ctypes.c_void_p), *arguments)
        return None if said < 0 else bool(said)

    @contextlib.contextmanager
    def environment(self, values: Mapping[str, str | None]) -> Iterator[None]:
        """Show the library these variables, and hide those whose value is None.

        If the guard is whole, no other thread sees them, so that rings may form while other threads read the
        environment or form a ring as well.
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
        """Let rings that form from now on listen at this address, whatever the host's name resolves to."""
        if self._native is not None:
            self._native.edl_set_host(address.encode())

    def failure(self, attempt: int) -> str | None:
        """Return why the thread of this attempt ended; None if it has not."""
        what = self._native.edl_failure(attempt) if self._native is not None else None
        return None if what is None else plain(what.decode(errors="replace"))

    def set_hurry(self, hurry: bool) -> None:
        """End, from any thread, all waits of Horovod's and gloo's threads as if timed out."""
        if self._native is not None:
            self._native.edl_set_hurry(int(hurry))

    @property
    def hurries(self) -> bool:
        """Tell whether waits end at once: `set_hurry` was called, or a connection of the standing ring has ended."""
        return self.whole and bool(self._native.edl_hurries())

    def cut(self) -> int:
        """Shut down, from any thread, all sockets that Horovod's library has open, and no others. Return how many.

        Without a guard these are unknown, so that a stuck trainer waits for gloo's own time-out.
        """
        return 0 if self._native is None else int(self._native.edl_cut())

    def pulse(self) -> Pulse | None:
        """Tell, from any thread, what has moved in the ring that stands; None if that is not known."""
        found = _Pulse()
        if not self.whole or not self._native.edl_pulse(ctypes.byref(found), None, 0):
            return None
        return Pulse(found.waiting, found.begun, found.turns, found.bytes)

    def waiting(self) -> list[str]:
        """Name, from any thread, the tensors for which some members are missing; only some of them if they are many."""
        if not self.whole:
            return []
        names = ctypes.create_string_buffer(NAMES_BYTES)
        self._native.edl_pulse(ctypes.byref(_Pulse()), names, NAMES_BYTES)
        return names.value.decode(errors="replace").splitlines()

    def set_spin(self, seconds: float, settling_s: float = 0.0) -> None:
        """Set for how long a thread polls for a collective before it naps between two looks.

        In a ring that begins it naps after a millisecond, for `settling_s` from its first wait on.
        """
        if self._native is not None:
            times = (ctypes.c_int64(round(1e9 * one)) for one in (seconds, settling_s))
            self._native.edl_set_spin(*times)

    def set_standing(self, standing: bool) -> None:
        """Tell the guard whether a ring stands: then the end of a connection brings a hurry."""
        if self._native is not None:
            self._native.edl_set_standing(int(standing))

    @contextlib.contextmanager
    def awaited(self) -> Iterator[None]:
        """Let gloo's loop take a turn each millisecond, while a ring forms for which its members wait."""
        if self._native is None:
            yield
            return
        self._native.edl_set_awaited(1)
        try:
            yield
        finally:
            self._native.edl_set_awaited(0)


def plain(message: str) -> str:
    """Return a message of gloo or Horovod without source positions, guesses at the cause, and pointers to other output.

    After a hurry has ended its wait, gloo names its whole time-out, so that the length is left out.
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
