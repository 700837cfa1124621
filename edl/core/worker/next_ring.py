"""The ring that a worker forms beside the one it sits in, before a switch: it is adopted, or let go of.

Owns: which one that is, and whether it stands. Does not own: when it is wanted (`edl.core.switch.preparing`), nor how
it is formed (`edl.trainer.preparer`).
"""

from __future__ import annotations

from edl.core.worker.inputs import Command, PrepareRing, ReleaseRing, RingNotPrepared, RingPrepared, TellDaemon
from edl.protocol import link as say
from edl.protocol.assignment import Orders
from edl.protocol.ring import Place


class NextRing:
    """Of one worker: at most one at a time, and each number once."""

    def __init__(self) -> None:
        self.generation = 0  # being formed, or formed; 0: there is none
        self.stands = False
        self._newest = 0  # that was ever begun
        self._said: say.Prepared | None = None  # of the newest, as its daemon was told

    @property
    def story(self) -> list[say.FromTrainer]:
        """What another daemon must know of it."""
        return [] if self._said is None else [self._said]

    def heed(self, orders: Orders) -> list[Command]:
        """Begin what these orders want; let go of what they do not."""
        place = None if orders.summons is None else orders.summons.place
        wanted = _assigned(orders) if place is None else place.generation
        commands = [] if self.generation == wanted else self.release()
        return commands if place is None or place.generation <= self._newest else [*commands, self._begin(place)]

    def take(self, happened: RingPrepared | RingNotPrepared) -> list[Command]:
        """It is formed, or will not be. Of one that is not wanted any more, nothing is told."""
        if happened.generation != self.generation:
            return []
        failure = happened.reason or "no reason was given" if isinstance(happened, RingNotPrepared) else ""
        self.stands = not failure
        self.generation = 0 if failure else self.generation
        self._said = say.Prepared(happened.generation, failure)
        return [TellDaemon(self._said)]

    def adopt(self, generation: int) -> bool:
        """Its members leave theirs for this one now; False: it does not stand."""
        stands = self.stands and self.generation == generation
        if stands:
            self.generation, self.stands = 0, False
        return stands

    def release(self) -> list[Command]:
        """It is never adopted."""
        released: list[Command] = [ReleaseRing(self.generation)] if self.generation else []
        self.generation, self.stands = 0, False
        return released

    def _begin(self, place: Place) -> Command:
        self._newest = self.generation = place.generation
        self.stands = False
        return PrepareRing(place)


def _assigned(orders: Orders) -> int:
    """The generation of the ring that was prepared for the switch which is announced; 0: none is."""
    assignment = orders.assignment
    return assignment.place.generation if assignment is not None and assignment.prepared else 0
