"""Port of the all-reduce ring, as the runtime uses it; gradients go through the adapters of the frameworks.

Owns: entering and leaving a ring, forming the next one beside it, moving bytes inside it, freeing threads that are
stuck in it, the time in which nothing has moved in it, and the weight of this worker's gradients in its average. Does
not own: applying that weight (the adapters), nor computing it from the data; who is in it (`edl.core`), when to change
it (`edl.trainer`), nor how long a wait is too long (`edl.trainer.wait_bounds`).

Neither Horovod nor gloo tells when a wait is to end. Horovod waits for ever for a member whose script hangs, as its
threads go on talking; gloo has a time-out of its own for each part of an operation. So edl looks at the ring now and
then, on a thread of its own: a usual step is not touched by that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from edl.errors import EdlError
from edl.protocol.assignment import Place


class Pulse(NamedTuple):
    """A snapshot of what has moved in a ring."""

    waiting: int  # collectives that this process has begun, and that not all members have come to
    begun: int  # times that one was
    turns: int | None  # of the ring's own thread, which takes none while it waits or reduces; None: it has no thread
    bytes: int  # that have gone over the ring's connections, both ways


class RingWaitTimes:
    """Follow how long a process waits in vain in its ring."""

    def __init__(self) -> None:
        self._at = (0, 0)
        self._last: Pulse | None = None
        self._moved_at = 0.0

    def look(self, at: tuple[int, int], pulse: Pulse | None, now: float) -> float:
        """Return the seconds for which nothing has moved in this generation and step (`at`). `pulse` None: no wait."""
        last, self._last = self._last, pulse
        if pulse is None or last is None or at != self._at or _moved(last, pulse):
            self._at, self._moved_at = at, now
        return now - self._moved_at


def _moved(last: Pulse, pulse: Pulse) -> bool:
    if pulse.turns is None and pulse.waiting == 0:
        return True
    if pulse.turns == last.turns:  # an operation may be under way for long, or a member's process says nothing
        return (pulse.bytes, pulse.begun) != (last.bytes, last.begun)
    return pulse.waiting == 0 or (pulse.waiting, pulse.begun) != (last.waiting, last.begun)


def never() -> bool:
    return False


class Ring(Protocol):
    """A process sits in one ring at most; it may prepare one more beside it.

    Methods run on the training thread unless they say otherwise.
    """

    on_trial: Callable[[], bool]
    """Set by the runtime: tells whether the ring has newcomers with which its other members have made no step yet. Then
    any error of a collective counts as a broken ring, and RingFault is raised.
    """

    @property
    def place(self) -> Place | None:
        """Return where this process sits now; None outside any ring."""

    @property
    def prepares(self) -> bool:
        """Tell whether a ring can form beside one that stands: if not, callers use `enter` instead of `prepare`."""

    @property
    def pairs_by_name(self) -> bool:
        """Tell whether collectives meet by name; else by their order, which only the training thread can keep."""

    def prepare(self, place: Place, timeout_s: float, *, all_prepare: bool) -> None:
        """Form the ring of `place.generation` beside the one that stands. Any thread may call it, one at a time.

        Returns once it stands. Raises RingBroken within `timeout_s`; the ring that stands is untouched either way.
        `all_prepare`: all members form it beside a working ring, so that slow preparations belong here. Otherwise some
        may `enter` it and all wait for it, as it replaces a broken ring.
        """

    def adopt(self, generation: int) -> None:
        """Sit in the prepared ring, between mini-batches and without waiting; the old one is left in the background.

        Raises RingBroken if that ring was not prepared, or has failed since.
        """

    def release(self, generation: int) -> None:
        """Drop, from any thread, a ring that is being or is prepared; harmless if there is none."""

    def enter(self, place: Place, timeout_s: float) -> None:
        """Form the ring of `place.generation` with all other members, and sit in it. Raises RingBroken in time."""

    def leave(self) -> None:
        """Leave the ring; harmless outside one and in a broken one."""

    def broadcast(self, payload: bytes | None, root: int) -> bytes:
        """Return the bytes of rank `root` on all members; others pass None. Raises RingBroken."""

    def largest(self, values: Sequence[int]) -> list[int]:
        """Return the largest of all members' values in each place: signed, of 64 bits. Raises RingBroken."""

    def same(self, value: int) -> Callable[[], bool]:
        """Ask whether all members pass the same value (64 bits, no sign). Return a function that waits for the answer.

        Other collectives may come in between. Both raise RingBroken. Any thread may ask if collectives meet by name.
        """

    def pulse(self) -> Pulse | None:
        """Tell, from any thread, what has moved in this process's ring; None if nothing is awaited there."""

    def awaits(self) -> str:
        """Return, from any thread, what is awaited: GRADIENTS, the name of a collective that lacks members, or nothing
        ('').
        """

    def abort(self, given_up: range | None = None) -> None:
        """Fail, from any thread, the collectives in flight, so that the training thread gets RingBroken.

        A ring that forms is given up likewise. `given_up`: only a ring of one of these generations, so that a late
        abort does not hit a newer one.
        """


def is_fault(ring: Ring, error: BaseException) -> bool:
    """Tell whether an `error` of a collective counts as a broken ring though its type does not say so."""
    return isinstance(error, Exception) and not isinstance(error, EdlError) and ring.on_trial()


def of_all_members(ring: Ring, mine: bytes) -> list[bytes]:
    """Return each member's bytes, by rank. It takes a message for each member, so ask seldom. Raises RingBroken."""
    place = ring.place
    if place is None:
        return [mine]
    return [ring.broadcast(mine if root == place.rank else None, root) for root in range(place.size)]


class GradientWeight:
    """Samples of this worker divided by samples of all workers; equal for all workers until `set` is called."""

    def __init__(self) -> None:
        self._weight: float | None = None
        self.weightless = False  # no worker has samples: whatever gradients are, there is no update (I13)

    def set(self, weight: float, *, weightless: bool = False) -> None:
        if not 0.0 <= weight <= 1.0:
            raise ValueError(f"a share is between 0 and 1, not {weight}")
        self._weight, self.weightless = weight, weightless

    def factor(self, size: int) -> float:
        """Return the factor for gradients by which their average over `size` workers becomes the weighted sum.

        Exactly 1.0 in the even case, so that callers can skip the multiplication.
        """
        if self._weight is None or size == 0:
            return 1.0
        factor = self._weight * size
        return 1.0 if math.isclose(factor, 1.0, rel_tol=1e-12) else factor
