"""A ring engine: one copy of Horovod's native library with its guard and its environment; it holds one ring at a time.

Owns: forming that ring, leaving it, cutting it. Does not own: which engine's ring the process trains in
(`edl.collectives.horovod_ring`), nor the tensors that it reduces.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

from edl.collectives.busy_wait import Spinning, spinning
from edl.collectives.horovod_environment import variables
from edl.collectives.horovod_libraries import Library
from edl.collectives.ring_start import Forming
from edl.collectives.ring_wait_times import Pulse
from edl.errors import RingBroken
from edl.protocol.ring_places import Place

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
        self._forming: Forming | None = None
        self._refused = False
        self._busy = threading.Lock()
        self._turn = threading.Lock()  # an abort is over before the next ring begins to form
        self._timeout_s = LEAVE_TIMEOUT_S
        self._spin = Spinning(0.0, 0.0)
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
        """Begin the time of short waits (`edl.collectives.busy_wait`) at the next wait."""
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
                self._forming = Forming(self._native, self._guard, place.generation)
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
