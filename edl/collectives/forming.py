"""Forming a ring: Horovod's native start, under a deadline, and survivable.

Owns: the call of `horovod_init`, its deadline, and its failure. Does not own: the environment that it reads
(`edl.collectives.horovod`).

Horovod 0.28.1 lets an exception out of the thread in which it forms a ring, which ends the process (SIGABRT): a peer
that dies in that moment would take all survivors with it. `_forming.cpp` catches it, and tells how.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import itertools
import logging
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edl.errors import RingBroken

logger = logging.getLogger("edl")

GRACE_S = 5.0  # from cutting the connections to the end of the native call
LOOK_S = 0.02  # how often a failed start is looked for; a successful one is reported at once
GENTLE_INIT = (None, 0, None, None, 0)  # arguments of horovod_init: all ranks, no process sets but the global one

_attempts = itertools.count(1)


def plain(message: str) -> str:
    """What gloo says, without the places in its sources where it says so."""
    return re.sub(r"\[/[^\]]*:\d+\] *", "", message)


class Watch:
    """The guard around one of Horovod's libraries. Without a compiler at installation there is none: see `active`."""

    def __init__(self, library: str) -> None:
        self._native = _load()
        self.active = self._native is not None and bool(self._native.edl_watch(library.encode()))
        if not self.active:
            logger.debug("no guard around %s: if a peer dies while a ring forms, this process will, too", library)

    def arm(self, attempt: int) -> None:
        """The calling thread is about to start this attempt."""
        if self._native is not None:
            self._native.edl_arm(attempt)

    def failure(self, attempt: int) -> str | None:
        """Why this attempt's thread ended, None while it has not."""
        what = self._native.edl_failure(attempt) if self._native is not None else None
        return None if what is None else plain(what.decode(errors="replace"))


def _load() -> Any:
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(f"_forming{suffix}")
        if path.exists():
            native = ctypes.CDLL(str(path))
            native.edl_failure.restype = ctypes.c_char_p
            return native
    return None


class Forming:
    """One attempt to form a ring. The native call runs in a thread of its own, so that a stuck one can be given up."""

    def __init__(self, native: Any, watch: Watch) -> None:
        self._native = native
        self._watch = watch
        self._attempt = next(_attempts)
        self._done = threading.Event()
        self._given_up = threading.Event()
        self._formed = False

    def wait(self, timeout_s: float, cut: Callable[[], object]) -> None:
        """Returns once the ring is formed. Raises RingBroken; then Horovod is ready for another attempt.

        `cut` ends all connections that came into being meanwhile.
        """
        threading.Thread(target=self._form, name="edl-forming", daemon=True).start()
        reason = self._outcome(timeout_s, cut)
        if reason == "" and not self._given_up.is_set():
            return
        if reason is None:
            self._given_up.set()
            reason = f"not all members came within {timeout_s:g} s"
            if self._outcome(GRACE_S, cut) is None:
                raise RingBroken(f"the ring did not form, and Horovod does not let go of it: {reason}")
        cut()  # so that peers which have connected to us learn of it at once
        self._native.horovod_shutdown()  # joins what is left of the attempt, and lets the native call return later
        raise RingBroken(f"the ring did not form: {reason or 'it was aborted'}")

    def give_up(self) -> None:
        """From any thread: end the attempt."""
        self._given_up.set()

    @property
    def ended(self) -> bool:
        """Whether Horovod can be started again."""
        return self._done.is_set() or self._watch.failure(self._attempt) is not None

    def _outcome(self, timeout_s: float, cut: Callable[[], object]) -> str | None:
        """'' when formed, else the reason; None when neither is known in time."""
        for _ in range(max(1, round(timeout_s / LOOK_S))):
            if self._done.wait(LOOK_S):
                return "" if self._formed else "Horovod said no"
            failure = self._watch.failure(self._attempt)
            if failure is not None:
                return failure or "for an unknown reason"
            if self._given_up.is_set():
                cut()  # again and again: asking the rendezvous is tried three times
        return None

    def _form(self) -> None:
        self._watch.arm(self._attempt)
        self._formed = bool(self._native.horovod_init(*GENTLE_INIT))
        self._done.set()
