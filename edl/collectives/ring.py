"""The port of the all-reduce ring, as the runtime sees it; gradients go through the adapters of the frameworks.

Owns: entering and leaving a ring, moving bytes inside it, and freeing those who are stuck in it.
Does not own: who is in it (`edl.core`), nor when to change it (`edl.trainer`).
"""

from __future__ import annotations

from typing import Protocol

from edl.protocol.ring import Place


class Ring(Protocol):
    """At most one ring per process at a time. All methods but `abort` belong to the training thread."""

    @property
    def place(self) -> Place | None:
        """Where this process sits now, None outside any ring."""

    def enter(self, place: Place, timeout_s: float) -> None:
        """Form the ring with all other members of `place.generation`. Raises RingBroken within `timeout_s`."""

    def leave(self) -> None:
        """Leave the ring; harmless outside one, and in a broken one."""

    def broadcast(self, payload: bytes | None, root: int) -> bytes:
        """Bytes of rank `root`, on all members; others pass None. Raises RingBroken."""

    def agree(self, value: int) -> int:
        """The largest of all members' values (0 <= value < 2**53). Raises RingBroken."""

    def same(self, value: int) -> bool:
        """Whether all members pass the same value (64 bits, no sign). Raises RingBroken."""

    def abort(self, given_up: range | None = None) -> None:
        """From any thread: fail the collectives in flight, so that the training thread gets RingBroken.

        `given_up`: only a ring of one of these generations, so that an abort which comes late does not hit a newer one.
        """


def of_everybody(ring: Ring, mine: bytes) -> list[bytes]:
    """Each member's bytes, by rank: a message for each, so for what is seldom asked. Raises RingBroken."""
    place = ring.place
    if place is None:
        return [mine]
    return [ring.broadcast(mine if root == place.rank else None, root) for root in range(place.size)]
