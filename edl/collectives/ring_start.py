"""Forming a ring: Horovod's native start, under a deadline, and survivable.

Owns: the call of `horovod_init`, its deadline, and its failure. Does not own: the environment that it reads
(`edl.collectives.horovod_environment`), nor the guard that makes a failure survivable
(`edl.collectives.library_guard`).
"""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

from edl.collectives.library_guard import Guard
from edl.errors import RingBroken

GRACE_S = 5.0  # from giving up to the end of the native call
LOOK_S = 0.02  # how often a failed start is looked for; a successful one is reported at once
GENTLE_INIT = (None, 0, None, None, 0)  # arguments of horovod_init: all ranks, no process sets but the global one

_attempts = itertools.count(1)


class Forming:
    """A single attempt to form a ring. The native call runs in its own thread, so that a stuck call can be given up."""

    def __init__(self, native: Any, guard: Guard, generation: int) -> None:
        self.generation = generation
        self._native = native
        self._guard = guard
        self._attempt = next(_attempts)
        self._done = threading.Event()
        self._given_up = threading.Event()
        self._formed = False
        self.refused = False  # by this library for ever: a start that failed late leaves a mark that nothing takes away

    def wait(self, timeout_s: float) -> None:
        """Return once the ring is formed. Raises RingBroken; then Horovod is ready for another attempt."""
        threading.Thread(target=self._form, name="edl-forming", daemon=True).start()
        reason = self._outcome(timeout_s)
        if reason == "" and not self._given_up.is_set():
            return
        if reason is None:
            self.give_up()
            reason = f"not all members came within {timeout_s:g} s"
            if self._outcome(GRACE_S) is None:
                raise RingBroken(f"the ring did not form, and Horovod does not let go of it: {reason}")
        elif self._given_up.is_set():
            reason = "it was aborted"
        self._guard.cut()  # so that peers which have connected to us learn of it at once
        self._native.horovod_shutdown()  # joins what is left of the attempt
        raise RingBroken(f"the ring did not form: {reason}")

    def give_up(self) -> None:
        """End the attempt. Any thread may call it."""
        self._given_up.set()
        self._guard.set_hurry(True)

    @property
    def ended(self) -> bool:
        """Tell whether Horovod can be started again."""
        return self._done.is_set() or self._guard.failure(self._attempt) is not None

    def _outcome(self, timeout_s: float) -> str | None:
        """Return '' when formed, else the reason; None if neither is known in time."""
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            if self._done.wait(LOOK_S):
                self.refused = not self._formed
                return "" if self._formed else "Horovod said no"
            failure = self._guard.failure(self._attempt)
            if failure is not None:
                return failure or "for an unknown reason"
            if self._given_up.is_set():
                self._guard.cut()  # again and again: asking the rendezvous is tried three times
        return None

    def _form(self) -> None:
        said = self._guard.start(self._attempt, self._native.horovod_init, GENTLE_INIT)
        if said is not None:
            self._formed = said
            self._done.set()
