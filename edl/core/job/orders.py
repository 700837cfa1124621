"""Derive each worker's orders from the durable record: a pure function, so that a new leader says the same as the old
one (I9).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import msgspec

from edl.core.data.ledger_versions import ALL
from edl.core.data.ledgers import restored_ledger
from edl.core.driver import horovod_counts
from edl.core.job.local_ranks import Ranks, ranks_of
from edl.core.switch.address_exchange import partners
from edl.core.switch.next_generation import outlived
from edl.protocol.assignment import Assignment, Orders, Peer, Place, Share, Summons, Verdict
from edl.protocol.checkpoint_record import Hold, Origin, Remnant, Save, Why
from edl.protocol.data_nouns import ITEMS, Lease, LedgerSnapshot, ShardPart, held_by, lane_of
from edl.protocol.record import OVER, JobState, Record, WorkerState


class OrderBook:
    """`before` is the book of an earlier record: what is alike in both need not be worked out again."""

    def __init__(self, record: Record, term: int, before: OrderBook | None = None) -> None:
        self.record = record
        self._term = term
        self._members = {member.identity.id: member for member in record.members}
        self._in_ring = frozenset(record.roster)
        known = before.known if before is not None else ()
        self._present = _data_of(record.ledger, known)
        self._planned = _data_of(record.plan.ledger, known) if record.plan else None
        self._superseded = [(one, _data_of(one.ledger, known)) for one in record.superseded]

    @property
    def known(self) -> tuple[_Data, ...]:
        told = (self._present, self._planned, *(data for _, data in self._superseded))
        return tuple(data for data in told if data is not None)

    def orders(self, worker: str) -> Orders:
        record = self.record
        verdict, reason, leave_after_step = self._verdict(worker)
        waiting = record.generation == 0 and record.plan is None
        return Orders(
            term=self._term,
            version=record.version,
            verdict=verdict,
            reason=reason,
            leave_after_step=leave_after_step,
            wanted=record.target if waiting else 0,
            present=len(record.members),
            boot_alone=self._boots_alone(worker),
            assignment=self._assignment(worker),
            shares=tuple(self._shares(worker)),
            recount=horovod_counts.asked_of(record.sizing.driver, worker) if worker in self._members else 0,
            local_rank=self._local_rank(worker),
            summons=self._summons(worker),
            save=self._save(worker),
            origin=self._origin,
            life=record.job_policy.checkpointing.life,
            hold=self._hold,
            going=record.checkpoints.preemption is not None,
            resumable=record.state is JobState.PREEMPTED,
        )

    def _verdict(self, worker: str) -> tuple[Verdict, str, int]:
        record, member = self.record, self._members.get(worker)
        if record.state in OVER:
            return Verdict.STOP, record.reason, 0
        if member is None:
            return self._verdict_on_a_stranger(worker)
        if member.state is not WorkerState.LEAVING:
            return Verdict.STAY, "", 0
        return self._verdict_on_a_leaver(worker)

    def _verdict_on_a_leaver(self, worker: str) -> tuple[Verdict, str, int]:
        record, plan = self.record, self.record.plan
        if plan is not None and worker in plan.roster:
            return Verdict.STAY, "", 0  # the others count on it: it goes along, and leaves with the next one
        if worker not in record.roster:
            return Verdict.LEAVE, "", 0
        if plan is None:  # not yet; but where all others are done, no other ring will follow to leave with
            return Verdict.LEAVE if outlived(record.roster, self._members) else Verdict.STAY, "", 0
        return Verdict.LEAVE, "", plan.after_step or 0

    def _verdict_on_a_stranger(self, worker: str) -> tuple[Verdict, str, int]:
        if worker in self._remnants:  # they may be all that is left of the model
            return Verdict.STAY, "", 0
        reason = next((gone.reason for gone in self.record.gone if gone.worker == worker), None)
        if reason == "":
            return Verdict.LEAVE, "", 0
        said = f": {reason}" if reason else ""
        return Verdict.STOP, f"the job's leader has given this worker up{said}", 0

    def _local_rank(self, worker: str) -> int:
        member = self._members.get(worker)
        return member.local_rank if member else 0

    def _boots_alone(self, worker: str) -> bool:
        """Tell whether a newcomer boots alone: not before any ring, as the first one may need it inside `init`; nor
        while it is in a planned ring. If that has failed it, it must go on saying so until another one is planned.
        """
        return self.record.begun and worker not in self._in_ring and worker not in self._ranks

    def _assignment(self, worker: str) -> Assignment | None:
        plan = self.record.plan
        if plan is None or worker not in self._ranks:
            return None
        place = _place(worker, self._ranks[worker], plan.generation, len(plan.roster))
        return Assignment(
            place=place,
            after_step=plan.after_step,
            newcomers=self._newcomers,
            peers=self._peers(place.rank, plan.roster),
            checking=self.record.job_policy.checking,
            follows=self.record.generation,
            prepared=plan.prepared,
            beside=plan.beside,
            offer=plan.offer,
        )

    def _peers(self, rank: int, roster: tuple[str, ...]) -> tuple[Peer, ...]:
        """Return the members with which `rank` exchanges addresses: few, as not all need hear of all."""
        met = {peer: roster[peer] for peer in partners(rank, len(roster))}
        known = {peer: self._members[worker].identity for peer, worker in met.items() if worker in self._members}
        return tuple(Peer(peer, f"{identity.address}:{identity.port}") for peer, identity in known.items())

    def _summons(self, worker: str) -> Summons | None:
        """Call a worker to meet those that it trades with in the switch: so their daemons are known to connect."""
        roll_call, ranks = self.record.roll_call, self._called.get(worker)
        if roll_call is None or ranks is None:
            return None
        place = _place(worker, ranks, roll_call.generation, len(roll_call.roster)) if roll_call.generation else None
        return Summons(roll_call.number, self._peers(ranks.rank, roll_call.roster), place)

    def _save(self, worker: str) -> Save | None:
        saving, part = self.record.checkpoints.saving, self._parts.get(worker)
        if saving is None or part is None or saving.complete:
            return None
        if saving.remnants:
            part, parts, limbs = 0, 1, self._remnants[worker].limbs
            return Save(saving.number, saving.generation, saving.after_step, part, parts, saving.path, True, limbs)
        parts = len(saving.roster)
        return Save(saving.number, saving.generation, saving.after_step, part, parts, saving.path, saving.stands)

    @cached_property
    def _remnants(self) -> dict[str, Remnant]:
        return {one.worker: one for one in self.record.held}

    @cached_property
    def _hold(self) -> Hold | None:
        """Hold members of a preempted job after the saved step: anything beyond it would be trained again."""
        record = self.record
        if (
            record.checkpoints.saving is None
            or record.checkpoints.saving.why is not Why.PREEMPT
            or record.state in OVER
        ):
            return None
        return Hold(record.checkpoints.saving.generation, record.checkpoints.saving.after_step)

    @cached_property
    def _parts(self) -> dict[str, int]:
        saving = self.record.checkpoints.saving
        return {worker: rank for rank, worker in enumerate(saving.roster)} if saving is not None else {}

    @cached_property
    def _origin(self) -> Origin | None:
        """Return the origin, which is the same for all workers, whenever they come."""
        resumed, life = self.record.checkpoints.resumed, self.record.job_policy.checkpointing.life
        return None if resumed is None else Origin(resumed.path, resumed.step, life, resumed.epoch)

    @cached_property
    def _newcomers(self) -> int:
        return 0 if self.record.plan is None else newcomers(self.record, self.record.plan.roster)

    @cached_property
    def _ranks(self) -> dict[str, Ranks]:
        return ranks_of(self.record.plan.roster if self.record.plan else (), self._members)

    @cached_property
    def _called(self) -> dict[str, Ranks]:
        return ranks_of(self.record.roll_call.roster if self.record.roll_call else (), self._members)

    def _shares(self, worker: str) -> list[Share]:
        record, plan = self.record, self.record.plan
        found = []
        if worker in self._in_ring and self._present is not None:
            present = self._present.share(worker, record.roster, record.generation, record.began_step)
            if record.sizing.rebatch is not None:
                present = msgspec.structs.replace(
                    present, rebatch=record.sizing.rebatch.number, mark=record.sizing.rebatch.mark
                )
            found.append(present)
        if plan is not None and plan.leased_after is not None and worker in self._ranks and self._planned is not None:
            found.append(
                self._planned.share(
                    worker, plan.roster, plan.generation, plan.leased_after, foreseen=plan.after_step is None
                )
            )
        found += [
            data.share(worker, one.roster, one.generation, one.leased_after, foreseen=one.after_step is None)
            for one, data in self._superseded
            if data is not None and one.leased_after is not None and worker in one.roster
        ]
        return found


def newcomers(record: Record, roster: tuple[str, ...]) -> int:
    """Return members of a next ring that lack the others' state. The first ring of all starts from its rank 0's."""
    return 0 if record.generation == 0 else len(set(roster) - set(record.roster))


def _place(worker: str, ranks: Ranks, generation: int, size: int) -> Place:
    return Place(
        generation=generation,
        rank=ranks.rank,
        size=size,
        worker=worker,
        local_rank=ranks.local_rank,
        local_size=ranks.local_size,
        cross_rank=ranks.cross_rank,
        cross_size=ranks.cross_size,
    )


class _Data:
    def __init__(self, snapshot: LedgerSnapshot) -> None:
        self.snapshot = snapshot
        ledger = restored_ledger(snapshot)
        self._leases = {member.worker: member.leases for member in snapshot.members}
        self._parts = () if snapshot.stream is None else snapshot.stream.parts
        self._totals, self._covered_step, self._last = ledger.totals(), ledger.covered_step, ledger.fully_leased
        self._batch = sum(member.batch for member in snapshot.members)

    def share(
        self, worker: str, roster: tuple[str, ...], generation: int, after_step: int, *, foreseen: bool = False
    ) -> Share:
        return Share(
            generation=generation,
            after_step=after_step,
            leases=self._leases_of(worker, roster),
            totals=self._totals,
            covered_step=self._covered_step,
            epochs=self.snapshot.spec.epochs,
            last=self._last,
            batch=self._batch,
            foreseen=foreseen,
            parts=tuple(self._parts_of(worker, roster)) if self._parts else (),
        )

    def _parts_of(self, worker: str, roster: tuple[str, ...]) -> Iterator[ShardPart]:
        """Yield the parts of a stream that `worker` reads; those of its other leases, too, without a holder."""
        shards, virtual = self.snapshot.spec.shards, self.snapshot.spec.virtual
        if virtual:
            first, last = held_by(roster.index(worker), len(roster), virtual)
            own = (one for one in self._parts if first <= lane_of(one.part % shards, virtual) < last)
            yield from (msgspec.structs.replace(one, holder=worker) for one in own)
            return
        of = {
            piece.epoch * shards + piece.start // ITEMS
            for lease in self._leases.get(worker, ())
            for piece in lease.ranges
        }
        for one in self._parts:
            if one.holder == worker:
                yield one
            elif one.part in of:
                yield msgspec.structs.replace(one, holder="")

    def _leases_of(self, worker: str, roster: tuple[str, ...]) -> tuple[Lease, ...]:
        virtual = self.snapshot.spec.virtual
        if not virtual:
            return self._leases.get(worker, ())
        part = (*held_by(roster.index(worker), len(roster), virtual), virtual)
        return tuple(msgspec.structs.replace(lease, part=part) for lease in self._leases.get(ALL, ()))


def _data_of(snapshot: LedgerSnapshot | None, known: tuple[_Data, ...]) -> _Data | None:
    """Return the known data of a snapshot, or new data: most changes of a record keep the snapshot object."""
    if snapshot is None:
        return None
    return next((data for data in known if data.snapshot is snapshot), None) or _Data(snapshot)
