"""In which state a new ring begins: the newest committed step of its members, from whoever has it (I5).

All members put one number into one small all-reduce that takes the highest. Owns: the form of that number. Does not
own: the all-reduce, nor the copying (`edl.runtime.sitting`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from edl.protocol.assignment import Assignment

RANK_BITS: Final = 16
RANKS: Final = 2**RANK_BITS - 1
DOUBT: Final = 2**53 - 1  # higher than every vote: one member is enough


@dataclass(frozen=True, slots=True)
class Agreed:
    """The step that all begin after, and the lowest rank among those that have its state."""

    step: int
    root: int


def has_state(step: int, *, tainted: bool) -> bool:
    """A member's model is that of `step`. Before the first step nobody's is worth more than another's."""
    return step > 0 and not tainted


def vote(step: int, rank: int, *, has_state: bool) -> int:
    """One member's number: the newer the step the higher, and of two with the same step the lower rank's."""
    return ((step + 1) << RANK_BITS) + (RANKS - rank) if has_state else 0


def doubts(assignment: Assignment, generation: int, step: int, *, has_state: bool) -> bool:
    """In a planned switch all survivors come with the state of its step, so that nobody need ask; but not this one.

    It comes from a ring that broke on the way: a leaver may have died in the very step that the others have applied.
    """
    planned = assignment.after_step is not None and assignment.after_step > 0
    return planned and generation > 0 and not (has_state and step == assignment.after_step)


def agreed(highest: int) -> Agreed | None:
    """What the highest of all votes says; None when nobody has a state."""
    return Agreed((highest >> RANK_BITS) - 1, RANKS - (highest & RANKS)) if highest else None
