"""Agree on the state in which a new ring begins: the newest committed step of its members, from one that has it (I5).

Each member says a few numbers, its vote, in a small all-reduce that takes the highest of each, and hears these.
Where a ring stands as it is planned, and all its members have the state of the planned step, but for newcomers that get
it beside the first steps, the plan says how it begins, and members say nothing. A survivor that is not in that state
does not come to that ring, which breaks for the others.
Owns: these numbers, and what follows from what is heard. Does not own: the all-reduce, nor the copying
(`edl.trainer.worker_shell`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from edl.errors import JobFailed, RingBroken
from edl.protocol.assignment import Assignment

RANK_BITS: Final = 16
RANKS: Final = 2**RANK_BITS - 1


class Vote(NamedTuple):
    newest: int  # the newer its state the higher, and of two with the same step the lower rank's; 0: it has none
    behind: int  # minus the step of its state, above all of these where it has none: the highest is the last one's
    doubts: int  # 1: it is not in the state of the planned step
    unbooted: int  # 1: it could do nothing with a state yet (I4)


@dataclass(frozen=True, slots=True)
class Agreed:
    """The step that all begin after, and the lowest rank among those that have its state."""

    step: int
    root: int


@dataclass(frozen=True, slots=True)
class Beginning:
    """Beginning of a ring: after `step`, from the state of rank `root`; None where none has one yet."""

    step: int
    root: int | None
    whole: bool = False  # a member is new or behind: all of that state goes to all, else only what may differ anyway
    unsure: bool = False  # a ring broke: what a void mini-batch may have changed on some may differ
    current: bool = False  # this member has the state of `step` already
    offer: int = 0  # where newcomers get that of the root while all compute the first steps; 0: it is not sent so


@dataclass(slots=True)
class Entering:
    assignment: Assignment
    generation: int  # the one that it comes from
    step: int  # what it has committed
    has_state: bool
    voided: bool = False  # the mini-batch after that was void
    booted: bool = True  # its script is past `init`
    beginning: Beginning | None = None  # once it is known

    @property
    def is_new(self) -> bool:
        """Tell whether this member is none of the ring on record, and so a newcomer to the others, whatever ring it
        has sat in before.
        """
        return is_new(self.assignment, self.generation)


def says(entering: Entering) -> Vote | None:
    """Return None in a ring whose members say nothing. Raises RingBroken."""
    assignment = entering.assignment
    if _is_first(assignment):
        return None
    doubts_it = doubts(
        assignment, entering.generation, entering.step, has_state=entering.has_state, voided=entering.voided
    )
    if not assignment.begins_as_planned:
        mine = newness(entering.step, assignment.place.rank, has_state=entering.has_state)
        return Vote(mine, -entering.step if entering.has_state else 1, int(doubts_it), int(not entering.booted))
    if doubts_it:
        raise RingBroken("this worker is not in the state of the planned step, which all others take it to be in")
    return None


def begins(entering: Entering, heard: Vote | None) -> Beginning:
    """`heard` is the highest of all votes, None where members say nothing. Raises JobFailed, RingBroken."""
    assignment = entering.assignment
    if _is_first(assignment):
        return Beginning(0, None)
    if heard is None:
        current = entering.has_state and not entering.is_new
        return Beginning(assignment.after_step or 0, 0, current=current, offer=assignment.offer)
    newest = agreed(heard.newest)
    if newest is None and entering.step:
        raise JobFailed("the model's state is lost: the worker that had the newest one died while it was copied")
    if newest is None:
        return Beginning(0, None)  # none has trained yet: the first step begins from rank 0's model
    unsure = bool(heard.doubts) or not assignment.after_step  # not all may be at one step
    if unsure and heard.unbooted:
        raise RingBroken("a member has not booted yet, and others have trained: it boots alone first")
    whole = heard.behind > -newest.step if unsure else assignment.newcomers > 0
    current = entering.has_state and entering.step == newest.step
    return Beginning(newest.step, newest.root, whole, unsure, current)


def _is_first(assignment: Assignment) -> bool:
    """Tell whether no member has trained. A collective would initialize TensorFlow, and a script that pins its GPU
    after init(), as with Horovod, could not do so any more.
    """
    return assignment.place.generation == 1


def has_state(step: int, *, tainted: bool) -> bool:
    """Return False before the first step, where all members' models are worth the same."""
    return step > 0 and not tainted


def newness(step: int, rank: int, *, has_state: bool) -> int:
    """Return a number that grows with the step, and is higher for the lower of two ranks with the same step; 0: no
    state.
    """
    return ((step + 1) << RANK_BITS) + (RANKS - rank) if has_state else 0


def is_new(assignment: Assignment, generation: int) -> bool:
    return not generation or generation < assignment.follows


def doubts(assignment: Assignment, generation: int, step: int, *, has_state: bool, voided: bool = False) -> bool:
    """Tell whether this member may lack the planned step's state, though all others rely on it in a planned switch.

    Such a member comes from a ring that broke on the way: a leaver may have died in the very step that the others have
    applied. Or the announcement reached it late: then the others left it alone in a mini-batch that is void, and that
    may have changed what is not learned (a schedule has moved on, say). Or it has trained in a ring that the leader
    never heard of, and comes to what the others take for the first one.
    """
    if assignment.after_step is None:
        return False  # all are asked in any case
    if assignment.after_step == 0:
        return has_state
    if is_new(assignment, generation):
        return not assignment.newcomers
    return not (has_state and step == assignment.after_step and not voided)


def agreed(highest: int) -> Agreed | None:
    """Decode the highest number; None when no member has a state."""
    return Agreed((highest >> RANK_BITS) - 1, RANKS - (highest & RANKS)) if highest else None
