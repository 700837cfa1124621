"""A leader's orders for a worker: its place in the ring, the step from which on it holds, and its data."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from edl.protocol.checkpoint_record import Hold, Origin, Save
from edl.protocol.data_nouns import Lease, ShardPart, Totals
from edl.protocol.divergence_report import Checking

AUTO: Final = "auto"


class RingKind(StrEnum):
    """The library that the rings of a job are made of: the same on all its workers."""

    UNSAID = ""
    HOROVOD = "horovod"
    TORCH = "torch"


def ring_kind(said: str, *, horovod_alone: bool, has_horovod: bool) -> RingKind:
    """Return the ring of a worker whose `--ring` is `said`. `horovod_alone`: its framework, or its launcher, allows no
    other. `has_horovod`: Horovod is installed for the worker's framework.
    """
    if said != AUTO:
        return RingKind(said)
    return RingKind.HOROVOD if horovod_alone or has_horovod else RingKind.TORCH


class Place(msgspec.Struct, frozen=True):
    """Generation 0 is the solo ring: size 1, no rendezvous."""

    generation: int
    rank: int
    size: int
    worker: str  # this worker's id: its host name towards Horovod, so that (host, local rank) is unique in a flat ring
    rendezvous: str = ""  # where its trainer finds the others: at its own daemon (`edl.collectives.rendezvous`)
    interface: str = "lo"  # network interface that the ring's own connections use
    local_rank: int = 0  # unique among the workers of the same host: devices are chosen by it
    local_size: int = 1
    cross_rank: int = 0  # index of this host among those that have this local rank too
    cross_size: int = 1
    address: str = "127.0.0.1"  # of this worker's host, on that interface
    key: bytes = b""  # of this ring: its members authenticate each other by it; derived from the job's secret


class Peer(msgspec.Struct, frozen=True):
    """A member of a ring, with whose daemon this worker's daemon exchanges addresses."""

    rank: int
    address: str  # of its daemon


def solo(worker: str, local_rank: int = 0) -> Place:
    """Return the ring of one, in which a newcomer boots and rehearses."""
    return Place(generation=0, rank=0, size=1, worker=worker, local_rank=local_rank)


class Assignment(msgspec.Struct, frozen=True):
    """The part of one worker in one generation."""

    place: Place
    after_step: int | None  # enter once this step is committed; None: at once, as the ring before is broken
    newcomers: int  # members that need the state of the others
    peers: tuple[Peer, ...] = ()  # members that this worker's daemon asks for the addresses of the others
    checking: Checking = Checking()  # the same for all members, or they would wait for each other
    follows: int = 0  # the generation in force: rings planned between it and this one are dropped
    prepared: bool = False  # its ring stands already, at all members, beside the one that trains
    # over so many steps newcomers get their state while all others compute, and have no samples; 0: before the first
    # step
    beside: int = 0
    offer: int = 0  # address of rank 0 from which newcomers get the state; 0: none

    @property
    def begins_as_planned(self) -> bool:
        """Tell whether each member knows how its ring begins, and needs to wait for no message."""
        # The other members have the planned step's state as this one has, and newcomers get it beside the first steps.
        return self.prepared and bool(self.after_step) and (self.beside > 0 or not self.newcomers)


class Summons(msgspec.Struct, frozen=True):
    """A call to the next ring, which is planned once all called workers have found each other, and the ring stands."""

    number: int  # of the call
    peers: tuple[Peer, ...]  # members that this worker's daemon asks for their presence, and for addresses
    place: Place | None = None  # once all have met: the place in the ring that is formed beside the one that trains


class Share(msgspec.Struct, frozen=True):
    """The data of one worker in one generation."""

    generation: int
    after_step: int  # valid if the generation took over after just this step; else a newer share follows
    leases: tuple[Lease, ...]
    totals: tuple[Totals, ...]
    covered_step: int
    epochs: int  # epochs that were wanted when this share was made
    last: bool  # no samples of these epochs are left to be leased
    batch: int = 0  # samples of a full step, of all workers together
    rebatch: int = 0  # number of the rebatch under way: beyond step `mark` leases may change; 0: there is none
    mark: int = 0
    # of a ring that replaces a broken one and is not in force yet: for a worker that enters it now
    foreseen: bool = False
    parts: tuple[
        ShardPart, ...
    ] = ()  # of a stream: those that it reads, and without a holder those that it has leases of


class Verdict(StrEnum):
    STAY = "stay"
    LEAVE = "leave"  # exit 0 after `leave_after_step`
    STOP = "stop"  # the job is over


class Orders(msgspec.Struct, frozen=True):
    """The complete orders for a worker: as each delivery is whole, a lost or doubled one does no harm."""

    term: int
    version: int
    verdict: Verdict
    reason: str  # why the job is over
    leave_after_step: int  # with LEAVE: the last step to take part in; 0 = leave at once
    wanted: int  # workers that the first generation waits for, 0 once it is planned
    present: int
    boot_alone: bool  # a ring stands already: boot and rehearse in a ring of one (I4)
    assignment: Assignment | None  # the place in the planned generation
    shares: tuple[Share, ...]  # data in the present and in the planned generation
    recount: int = 0  # the newest recount of horovodrun's driver that the worker's slot takes part in
    local_rank: int = 0  # never changes: a worker that boots alone chooses its device by it
    summons: Summons | None = None
    save: Save | None = None  # the copy to make, as its part of a checkpoint
    origin: Origin | None = None  # the checkpoint that this life resumed from; None: it has begun anew
    life: int = 1  # number of this life
    hold: Hold | None = None  # the step at which the worker waits for a preemption
    going: bool = False  # the job is being preempted: its launcher must know at once where a worker is
    resumable: bool = False  # with STOP: the job was preempted, and can be resumed
