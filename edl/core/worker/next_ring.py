"""The ring that a worker forms beside the one it sits in, before it goes there: it is entered, or let go of.

One is prepared for a switch, before that is announced. Another takes the place of a ring that is broken: its members
begin to form it as soon as they hear of it, each beside the mini-batch that is void.

Owns: which one that is, and whether it stands. Does not own: when it is wanted (`edl.core.switch.ring_forming`), nor
how it is formed (`edl.trainer.ring_builder`).
"""

from __future__ import annotations

from edl.core.worker.worker_inputs import Command, PrepareRing, ReleaseRing, RingNotPrepared, RingPrepared, TellDaemon
from edl.protocol.assignment import Assignment, Orders, Place
from edl.protocol.leader_messages import clipped


class NextRing:
    """Preparation of one worker's next ring: at most one at a time, and each number once."""

    def __init__(self) -> None:
        self.able = False  # rings form here beside others, as far as is known
        self.generation = 0  # being formed, or formed; 0: there is none
        self.stands = False
        self.failed = (0, "")  # the newest that came to nothing, and why
        self._trusted = True  # no attempt has failed since this worker came to its ring
        self._newest = 0  # that was ever begun
        self._called = False  # to that one, by the leader: it waits for our word
        self.prepared = (0, "")  # the newest that the leader is to know of, and why it does not stand
        self.offer = 0  # address at which newcomers get this worker's state in that one; 0: none

    def heed(self, orders: Orders, works_in: int = 0) -> list[Command]:
        """Begin what these orders want; let go of what they do not.

        `works_in`: the ring in which this worker is at a mini-batch, if it is. It comes to the next one after that.
        """
        called = None if orders.summons is None else orders.summons.place
        assigned = None if orders.assignment is None else orders.assignment.place
        wanted = called or assigned
        released = [] if wanted is not None and self.generation == wanted.generation else self.release()
        due = called or self._due(orders.assignment, works_in)
        if due is None or due.generation <= self._newest:
            return released
        self._called = called is not None
        return [*released, self._begin(due)]

    def take(self, happened: RingPrepared | RingNotPrepared) -> list[Command]:
        """Report whether the ring was prepared, unless it is not wanted any more."""
        if happened.generation != self.generation:
            return []
        failure, able, offer = "", True, 0
        if isinstance(happened, RingPrepared):
            offer = happened.offer
        else:
            failure, able = happened.reason or "no reason was given", happened.able
            self.generation, self.failed, self._trusted = 0, (happened.generation, failure), False
            self.able = self.able and able
        self.stands = not failure
        if not self._called and able:  # its members find out when they come to it
            return []
        self.prepared, self.offer = (happened.generation, clipped(failure)), offer
        return [TellDaemon()]

    def adopt(self, generation: int) -> bool:
        """Take over the prepared ring, as all its members leave theirs for it now; False: it does not stand."""
        stands = self.stands and self.generation == generation
        if stands:
            self.generation, self.stands = 0, False
        return stands

    def join(self, generation: int) -> bool:
        """Take over the ring that was begun in place of a broken one; False: it was not begun."""
        begun = self.generation == generation
        if begun:
            self.generation, self.stands = 0, False
        return begun

    def sit(self) -> None:
        self._trusted = True

    def release(self) -> list[Command]:
        """Release the ring: it is never adopted."""
        released: list[Command] = [ReleaseRing(self.generation)] if self.generation else []
        self.generation, self.stands = 0, False
        return released

    def _due(self, assignment: Assignment | None, works_in: int) -> Place | None:
        """Return the place in the ring that replaces a broken one, which may begin to form beside the mini-batch that
        is void.

        After an attempt that has failed here the ring is formed in line, which may do what that attempt failed to do.
        """
        if not (self.able and self._trusted) or assignment is None or assignment.after_step is not None:
            return None
        return assignment.place if 0 < works_in < assignment.place.generation else None

    def _begin(self, place: Place) -> Command:
        self._newest = self.generation = place.generation
        self.stands = False
        return PrepareRing(place, all_prepare=self._called)
