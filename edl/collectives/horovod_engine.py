"""A ring engine: one copy of Horovod's native library with its guard and its environment; it holds one ring at a time.

Owns: forming that ring (Horovod's native start, under a deadline, and survivable), leaving it, cutting it, and for how
long a worker polls for a collective. Does not own: which engine's ring the process trains in
(`edl.collectives.horovod_ring`), nor the tensors that it reduces.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

from edl.collectives.horovod_environment import variables
from edl.collectives.horovod_libraries import Library
from edl.collectives.library_guard import Guard
from edl.collectives.ring_port import Pulse
from edl.errors import RingBroken
from edl.protocol.assignment import Place

GRACE_S = 5.0  # from giving up to the end of the native call
LOOK_S = 0.02  # how often a failed start is looked for; a successful one is reported at once
GENTLE_INIT = (None, 0, None, None, 0)  # arguments of horovod_init: all ranks, no process sets but the global one

_attempts = itertools.count(1)


class RingStart:
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


LONG_S, SHORT_S = 0.05, 0.001  # where there is a core for each worker of this host, and where there is none
SETTLING_S = 0.5
NAME = "EDL_SPIN_MS"


class BusyWait(NamedTuple):
    usual_s: float
    settling_s: float  # it is short for so long, in a ring that begins


def spinning(workers: int, environment: Mapping[str, str], cores: int | None = None) -> BusyWait:
    """Choose for so many workers on this host for how long a worker polls for a collective in Horovod's loop before it
    naps between two looks (`_guard.cpp`). `edl.config` has checked the variable.

    A nap makes the wait a little longer. Without naps the worker keeps a core busy, which no other worker needs as long
    as there is one for each: a step's wait is over by then. Where a host has more workers than cores, it takes the core
    from those that it waits for. So it does everywhere for a moment in each ring that begins: daemons agree on it,
    other members come, one that crashed is started again.
    """
    given = environment.get(NAME, "")
    if given:
        return BusyWait(float(given) / 1000, 0.0)
    return BusyWait(LONG_S if workers <= (cores or len(os.sched_getaffinity(0))) else SHORT_S, SETTLING_S)


LEAVE_TIMEOUT_S = 10.0  # a healthy ring is left within milliseconds; see RingEngine._leave
REFUSED = "Horovod cannot be started again in this process, as a start of it has failed: start another worker instead"


class RingEngine:
    """Form, leave and cut the ring of one library, from any thread; forming and leaving exclude each other."""

    def __init__(self, library: Library, *, needs_elastic: bool) -> None:
        self.library = library
        self.place: Place | None = None  # in the ring that stands here
        self.broken = False  # a collective of that ring has failed
        self._needs_elastic = needs_elastic
        self._native = library.native.calls
        self._guard = library.native.guard
        self._forming: RingStart | None = None
        self._refused = False
        self._busy = threading.Lock()
        self._turn = threading.Lock()  # an abort is over before the next ring begins to form
        self._timeout_s = LEAVE_TIMEOUT_S
        self._spin = BusyWait(0.0, 0.0)
        self._tell_of_hosts(self._native)

    @property
    def held(self) -> bool:
        """Tell whether Horovod is stuck in a ring that did not form."""
        return self._forming is not None and not self._forming.ended

    @property
    def spent(self) -> bool:
        """Tell whether no ring can form here any more: Horovod refuses, or is stuck in the last one."""
        return self._refused or (self.held and not self._busy.locked())

    @property
    def idle(self) -> bool:
        """Tell whether no ring stands here, forms or is being left."""
        return self.place is None and not self._busy.locked()

    @property
    def free(self) -> bool:
        """Tell whether a ring may begin to form here at once."""
        return self.idle and not self.held and not self._refused

    @property
    def whole(self) -> bool:
        """Tell whether a ring stands here that no member has left or cut off, as far as is known here."""
        return self.place is not None and not self.broken and not self._guard.hurries

    @property
    def leaving(self) -> bool:
        return self.place is not None and self._busy.locked()

    def stands(self, generation: int) -> bool:
        """Tell whether the ring of this generation stands, and no member has left it, as far as is known here."""
        return self.place is not None and self.place.generation == generation and not self._guard.hurries

    def settle(self) -> None:
        """Begin the time of short waits (`edl.collectives.horovod_engine`) at the next wait."""
        self._guard.set_spin(*self._spin)

    def form(
        self, place: Place, timeout_s: float, wanted: Callable[[], bool] = lambda: True, *, awaited: bool = True
    ) -> None:
        """Form the ring of `place` once the previous one is left, if it is still `wanted`. Raises RingBroken in time.

        `awaited`: its members do not train meanwhile.
        """
        if not self._busy.acquire(timeout=timeout_s):
            raise RingBroken(f"the ring did not form: the one before it was not left within {timeout_s:g} s")
        try:
            with self._guard.awaited() if awaited else nullcontext():
                self._leave()
                self._form(place, timeout_s, wanted)
        finally:
            self._busy.release()

    def pulse(self) -> Pulse | None:
        """Tell, from any thread, what has moved in the ring that stands here; None if nothing was begun in it yet."""
        return None if self.place is None else self._guard.pulse()

    def waiting(self) -> list[str]:
        """Name, from any thread, the tensors for which some members are missing."""
        return [] if self.place is None else self._guard.waiting()

    def note_broken(self, generation: int) -> None:
        """Note, from any thread, that a collective of that ring has failed. The ring may have been left since."""
        with self._turn:
            if self.place is not None and self.place.generation == generation:
                self.broken = True

    def leave(self, generations: range | None = None) -> None:
        """Leave the ring that stands, if its generation is one of `generations`: a ring formed since then stays."""
        with self._busy:
            if generations is None or (self.place is not None and self.place.generation in generations):
                self._leave()

    def abort(self, given_up: range | None = None) -> None:
        """End, from any thread and at once, what the ring does, or its forming."""
        with self._turn:
            forming = self._forming
            if forming is None or (given_up is not None and forming.generation not in given_up):
                return
            forming.give_up()
            self._guard.cut()

    def _form(self, place: Place, timeout_s: float, wanted: Callable[[], bool]) -> None:
        if self._refused:
            raise RingBroken(REFUSED)
        if self.held:
            raise RingBroken("Horovod still holds on to a ring that did not form")
        if self._native.horovod_is_initialized():  # by the script's own hvd.init()
            self.library.shut_down()
        self._timeout_s = timeout_s
        self._spin = spinning(place.local_size, os.environ)
        with self._guard.environment(variables(place, timeout_s, keep_elastic=self._needs_elastic)):
            with self._turn:
                if not wanted():
                    raise RingBroken("the ring did not form: it was given up before")
                self.broken = False
                self._guard.set_hurry(False)
                self._guard.set_host(place.address)
                self.settle()
                self._forming = RingStart(self._native, self._guard, place.generation)
            try:
                self._forming.wait(timeout_s)
            finally:
                self._refused = self._forming.refused
        self.place = place
        self._guard.set_standing(True)

    def _leave(self) -> None:
        if self.place is None:
            return
        # A clean shutdown is negotiated between all members. If one of them is gone or frozen, it ends in a hurry;
        # gloo's own time-out would be tens of seconds. If one is merely the first to be through with it, no
        # member needs anything of another any more.
        if self.broken:
            self.abort()
        rescue = threading.Timer(self._timeout_s, self.abort)
        rescue.daemon = True
        rescue.start()
        try:
            self.library.shut_down()
        finally:
            rescue.cancel()
            self.place = None
            self._guard.set_standing(False)
            self._guard.set_hurry(False)
            self._guard.cut()  # gloo keeps them until it is asked for another ring, which may be hours from now

    def _tell_of_hosts(self, native: Any) -> None:
        # Horovod's Python part, which scripts ask, looks these functions up in its native part at each call.
        for what in ("local_rank", "local_size", "cross_rank", "cross_size"):
            name = f"horovod_{what}"
            setattr(native, name, partial(self._of_hosts, what, getattr(native, name)))

    def _of_hosts(self, what: str, horovods: Callable[[], int]) -> int:
        return horovods() if self.place is None else int(getattr(self.place, what))
