"""The port of the all-reduce ring, as the runtime sees it; gradients go through the adapters of the frameworks.

Owns: entering and leaving a ring, forming the next one beside it, moving bytes inside it, and freeing those who are
stuck in it. Does not own: who is in it (`edl.core`), nor when to change it (`edl.trainer`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from edl.collectives.patience import Pulse
from edl.errors import EdlError
from edl.protocol.ring import Place


def never() -> bool:
    """Say that no ring is on trial: `Ring.on_trial` before the runtime gives another."""
    return False


class Ring(Protocol):
    """A process sits in one ring at most; one more may be prepared beside it.

    What does not say that it is any thread's belongs to the training thread.
    """

    on_trial: Callable[[], bool]
    """Given by the runtime, and asked where a collective has raised what is no broken ring: the ring has newcomers that
    its other members have made no step with, so it counts as broken all the same, and RingFault is raised.
    """

    @property
    def place(self) -> Place | None:
        """Where this process sits now, None outside any ring."""

    @property
    def prepares(self) -> bool:
        """Whether it can form a ring beside one that stands. Callers look here first; where not, `enter` forms it."""

    @property
    def pairs_by_name(self) -> bool:
        """Members' collectives meet by their names; else by their order, which only the training thread can keep."""

    def prepare(self, place: Place, timeout_s: float, *, all_prepare: bool) -> None:
        """From any thread, one at a time: form the ring of `place.generation` beside the one that stands.

        Comes back once it stands. Raises RingBroken within `timeout_s`; the ring that stands is untouched either way.
        `all_prepare`: all members form it so, beside one that works, and what takes long belongs here. Else some may
        `enter` it, and all wait for it: it takes the place of a broken one.
        """

    def adopt(self, generation: int) -> None:
        """Between two mini-batches, without waiting: sit in the ring that is prepared. The old one is let go aside.

        Raises RingBroken if that one was not prepared, or has failed since.
        """

    def release(self, generation: int) -> None:
        """From any thread: a ring that is, or is being, prepared will never be adopted. Harmless if there is none."""

    def enter(self, place: Place, timeout_s: float) -> None:
        """Form the ring of `place.generation` with all other members, and sit in it. Raises RingBroken, in time."""

    def leave(self) -> None:
        """Leave the ring; harmless outside one, and in a broken one."""

    def broadcast(self, payload: bytes | None, root: int) -> bytes:
        """Bytes of rank `root`, on all members; others pass None. Raises RingBroken."""

    def largest(self, values: Sequence[int]) -> list[int]:
        """Of all members' values the largest in each place: signed, of 64 bits. Raises RingBroken."""

    def same(self, value: int) -> Callable[[], bool]:
        """Ask whether all members pass the same value (64 bits, no sign). What is returned waits for the answer: other
        collectives may come in between. Both raise RingBroken. Any thread may ask where collectives meet by name.
        """

    def pulse(self) -> Pulse | None:
        """Tell from any thread what has moved in this process's ring; None where nothing is waited for there."""

    def awaits(self) -> str:
        """Tell from any thread what this process waits for in its ring: GRADIENTS, or the collective to which not all
        members have come, by its name; empty: nothing.
        """

    def abort(self, given_up: range | None = None) -> None:
        """From any thread: fail the collectives in flight, so that the training thread gets RingBroken.

        What forms is given up likewise. `given_up`: only a ring of one of these generations, so that an abort which
        comes late does not hit a newer one.
        """


def is_fault(ring: Ring, error: BaseException) -> bool:
    """Return whether an `error` of a collective of `ring` counts as a broken ring, though it says nothing of one."""
    return isinstance(error, Exception) and not isinstance(error, EdlError) and ring.on_trial()


def of_all_members(ring: Ring, mine: bytes) -> list[bytes]:
    """Each member's bytes, by rank: a message for each, so for what is seldom asked. Raises RingBroken."""
    place = ring.place
    if place is None:
        return [mine]
    return [ring.broadcast(mine if root == place.rank else None, root) for root in range(place.size)]
