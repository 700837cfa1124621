"""In which state a new ring begins: the newest committed step of its members, from one that has it (I5).

Each member puts a number into a small all-reduce that takes the highest, and hears what that is; once, or a few times.
Where a ring stands as it is planned, and all its members have the state of the planned step, but for newcomers that get
it beside the first steps, the plan says how it begins, and members say nothing. A survivor that is not in that state
does not come to that ring, which breaks for the others.
Owns: these numbers, and what follows from what is heard. Does not own: the all-reduce, nor the copying
(`edl.trainer.shell`).
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from edl.errors import JobFailed, RingBroken
from edl.protocol.assignment import Assignment

RANK_BITS: Final = 16
RANKS: Final = 2**RANK_BITS - 1
DOUBT: Final = 2**53 - 1  # higher than every vote: one member is enough


@dataclass(frozen=True, slots=True)
class Agreed:
    """The step that all begin after, and the lowest rank among those that have its state."""

    step: int
    root: int


@dataclass(frozen=True, slots=True)
class Beginning:
    """How a ring begins: after `step`, from the state of rank `root`; None where none has one yet."""

    step: int
    root: int | None
    whole: bool = False  # a member is new or behind: all of that state goes to all, else only what may differ anyway
    unsure: bool = False  # a ring broke: what a void mini-batch may have changed on some may differ
    current: bool = False  # this member has the state of `step` already
    offer: int = 0  # where newcomers get that of the root while all compute the first steps; 0: it is not sent so


def begin(
    assignment: Assignment,
    generation: int,
    step: int,
    *,
    has_state: bool,
    voided: bool = False,
    booted: bool = True,
) -> Generator[int, int, Beginning]:
    """One member's part: it yields a number for the all-reduce, and is sent the highest of all.

    `generation` is the one that it comes from, `step` what it has committed; `voided`: the mini-batch after that was
    void; `booted`: its script is past `init`. All members yield equally often. Raises JobFailed, RingBroken.
    """
    if assignment.place.generation == 1:  # none has trained. A collective would make TensorFlow ready for use, and a
        return Beginning(0, None)  # script that pins its GPU after init(), as with Horovod, could no more
    mine = vote(step, assignment.place.rank, has_state=has_state)
    sure = not doubts(assignment, generation, step, has_state=has_state, voided=voided)
    if assignment.begins_as_planned:
        if not sure:
            raise RingBroken("this worker is not in the state of the planned step, which all others take it to be in")
        return Beginning(assignment.after_step or 0, 0, current=has_state, offer=assignment.offer)
    highest = yield mine if sure else DOUBT
    if doubted := highest == DOUBT:
        highest = yield mine
    newest = agreed(highest)
    if newest is None and step:
        raise JobFailed("the model's state is lost: the worker that had the newest one died while it was copied")
    if newest is None:
        return Beginning(0, None)  # none has trained yet: the first step begins from rank 0's model
    current = has_state and step == newest.step
    unsure = doubted or not assignment.after_step  # not all may be at one step
    whole = assignment.newcomers > 0
    if unsure:
        lacking = yield _lack(current, booted)
        whole = lacking >= Lack.STATE
        if lacking == Lack.BOOT:
            raise RingBroken("a member has not booted yet, and others have trained: it boots alone first")
    return Beginning(newest.step, newest.root, whole, unsure, current)


def has_state(step: int, *, tainted: bool) -> bool:
    """A member's model is that of `step`. Before the first step no member's is worth more than another's."""
    return step > 0 and not tainted


def vote(step: int, rank: int, *, has_state: bool) -> int:
    """One member's number: the newer the step the higher, and of two with the same step the lower rank's."""
    return ((step + 1) << RANK_BITS) + (RANKS - rank) if has_state else 0


def doubts(assignment: Assignment, generation: int, step: int, *, has_state: bool, voided: bool = False) -> bool:
    """In a planned switch all know which have the state of its step, so that none need ask; but not of this member.

    It comes from a ring that broke on the way: a leaver may have died in the very step that the others have applied. Or
    the word reached it late: then the others left it alone in a mini-batch that is void, and that may have changed what
    is not learned (a schedule has moved on, say). Or it has trained in a ring that the leader never heard of, and comes
    to what the others take for the first one.
    """
    if assignment.after_step is None:
        return False  # all are asked in any case
    if assignment.after_step == 0:
        return has_state
    if generation == 0:
        return not assignment.newcomers
    return not (has_state and step == assignment.after_step and not voided)


class Lack(IntEnum):
    """What a member lacks of the state that its ring begins in; the highest of all members' decides."""

    NOTHING = 0
    STATE = 1  # it gets the state of the others
    BOOT = 2  # and could do nothing with it yet: this ring is not to stand (I4)


def _lack(current: bool, booted: bool) -> Lack:
    if not booted:
        return Lack.BOOT
    return Lack.NOTHING if current else Lack.STATE


def agreed(highest: int) -> Agreed | None:
    """What the highest of all votes says; None when no member has a state."""
    return Agreed((highest >> RANK_BITS) - 1, RANKS - (highest & RANKS)) if highest else None
