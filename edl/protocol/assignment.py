"""What a leader tells a worker: where to sit in the ring, from which step on, and what to train."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from edl.protocol.data import Lease, Totals
from edl.protocol.divergence import Checking
from edl.protocol.ring import Peer, Place
from edl.protocol.saving import Hold, Origin, Save


class Assignment(msgspec.Struct, frozen=True):
    """One worker's part in one generation."""

    place: Place
    after_step: int | None  # enter once this step is committed; None: at once, the ring before is broken
    newcomers: int  # members that need the state of the others
    peers: tuple[Peer, ...] = ()  # those that this worker's daemon asks for the addresses of the others
    checking: Checking = Checking()  # the same for all of them, or they would wait for each other
    follows: int = 0  # the generation in force: rings that were planned between that one and this come to nothing
    prepared: bool = False  # its ring stands already, at all members, beside the one that trains
    beside: int = 0  # over so many steps newcomers get their state while all compute, and have no samples; 0: before
    offer: int = 0  # where they get it: from rank 0

    @property
    def begins_as_planned(self) -> bool:
        """Each member knows how its ring begins, and waits for a word of none: the others have the planned step's state
        as it has, and newcomers get it beside the first steps, if there are any.
        """
        return self.prepared and bool(self.after_step) and (self.beside > 0 or not self.newcomers)


class Summons(msgspec.Struct, frozen=True):
    """A worker is called to the next ring, which is planned once all have found each other, and it stands."""

    number: int  # of the call
    peers: tuple[Peer, ...]  # those that this worker's daemon asks whether they are there, and for addresses
    place: Place | None = None  # once all have met: in the ring that is formed beside the one that trains


class Share(msgspec.Struct, frozen=True):
    """One worker's data in one generation."""

    generation: int
    after_step: int  # holds if the generation took over after just this step; else a newer share follows
    leases: tuple[Lease, ...]
    totals: tuple[Totals, ...]
    covered_step: int
    epochs: int  # that were wanted when this share was made
    last: bool  # nothing of them is left to be leased
    batch: int = 0  # samples of a full step, of all workers together
    rebatch: int = 0  # number of the one under way: beyond step `mark` all may come otherwise; 0: there is none
    mark: int = 0
    foreseen: bool = False  # of a ring in place of a broken one, not in force yet: for one that comes to it now


class Verdict(StrEnum):
    """What is to become of a worker."""

    STAY = "stay"
    LEAVE = "leave"  # exit 0 after `leave_after_step`
    STOP = "stop"  # the job is over


class Orders(msgspec.Struct, frozen=True):
    """Everything a worker must know, whole each time: a lost or doubled delivery does no harm."""

    term: int
    version: int
    verdict: Verdict
    reason: str  # why the job is over
    leave_after_step: int  # with LEAVE: the last step to take part in; 0 = leave at once
    wanted: int  # workers that the first generation waits for, 0 once it is planned
    present: int
    boot_alone: bool  # a ring stands already: boot and rehearse in a ring of one (I4)
    assignment: Assignment | None  # the seat in the planned generation
    shares: tuple[Share, ...]  # data in the present and in the planned generation
    recount: int = 0  # the newest one of horovodrun's driver that the worker's slot takes part in
    local_rank: int = 0  # for life: a worker that boots alone chooses its device by it
    summons: Summons | None = None
    save: Save | None = None  # what it is to copy, as its part of a checkpoint
    origin: Origin | None = None  # of this life; None: it has begun anew
    life: int = 1  # its number
    hold: Hold | None = None  # where it waits for what becomes of that
    going: bool = False  # the job was asked to go: where a worker is must be known at once
    resumable: bool = False  # with STOP: the job was asked to go, and can be gone on with
