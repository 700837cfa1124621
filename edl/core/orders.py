"""From the durable record to each worker's orders: pure, so that a new leader says the same as the old one (I9)."""

from __future__ import annotations

from functools import cached_property

from edl.core.ledger import Ledger
from edl.protocol.assignment import Assignment, Orders, Share, Verdict
from edl.protocol.job import JobState, Member, Plan, Record, WorkerState
from edl.protocol.ledger import LedgerSnapshot
from edl.protocol.ring import Place

Address = tuple[str, int]


class OrderBook:
    """The orders of one durable record. `ring`: where the planned generation's rendezvous is, once it is hosted."""

    def __init__(self, record: Record, term: int, ring: Address | None) -> None:
        self.record = record
        self._term = term
        self._ring = ring
        self._members = {member.identity.id: member for member in record.members}

    def orders(self, worker: str) -> Orders:
        """What `worker` must know now."""
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
        )

    def _verdict(self, worker: str) -> tuple[Verdict, str, int]:
        record, plan, member = self.record, self.record.plan, self._members.get(worker)
        if record.state in (JobState.FAILED, JobState.FINISHED):
            return Verdict.STOP, record.reason, 0
        if member is None:
            return Verdict.STOP, "the job's leader has given this worker up", 0
        if member.state is not WorkerState.LEAVING:
            return Verdict.STAY, "", 0
        if worker not in record.roster:
            return Verdict.LEAVE, "", 0
        if plan is None or worker in plan.roster:
            return Verdict.STAY, "", 0
        return Verdict.LEAVE, "", plan.after_step or 0

    def _boots_alone(self, worker: str) -> bool:
        first = self.record.generation == 0
        planned_first = first and self.record.plan is not None and worker not in self.record.plan.roster
        return planned_first or not (first or worker in self.record.roster)

    def _assignment(self, worker: str) -> Assignment | None:
        plan = self.record.plan
        if plan is None or self._ring is None or worker not in plan.roster:
            return None
        return Assignment(
            place=self._place(worker, plan, self._ring),
            after_step=plan.after_step,
            newcomers=newcomers(self.record, plan),
            members=plan.roster,
        )

    def _place(self, worker: str, plan: Plan, ring: Address) -> Place:
        neighbours = [other for other in plan.roster if self._host(other) == self._host(worker)]
        return Place(
            generation=plan.generation,
            rank=plan.roster.index(worker),
            size=len(plan.roster),
            worker=worker,
            rendezvous_host=ring[0],
            rendezvous_port=ring[1],
            local_rank=neighbours.index(worker),
            local_size=len(neighbours),
        )

    def _host(self, worker: str) -> str:
        member: Member | None = self._members.get(worker)
        return member.identity.host if member else ""

    def _shares(self, worker: str) -> list[Share]:
        record, plan = self.record, self.record.plan
        found = []
        if worker in record.roster and self._ledger is not None:
            found.append(_share(worker, record.generation, record.began_step, self._ledger))
        if (
            plan is not None
            and plan.after_step is not None
            and worker in plan.roster
            and self._planned_ledger is not None
        ):
            found.append(_share(worker, plan.generation, plan.after_step, self._planned_ledger))
        return found

    @cached_property
    def _ledger(self) -> Ledger | None:
        return _restored(self.record.ledger)

    @cached_property
    def _planned_ledger(self) -> Ledger | None:
        return _restored(self.record.plan.ledger) if self.record.plan else None


def newcomers(record: Record, plan: Plan) -> int:
    """Members of the plan that have not the state of the others. The first generation starts from its rank 0's."""
    return 0 if record.generation == 0 else len(set(plan.roster) - set(record.roster))


def _restored(snapshot: LedgerSnapshot | None) -> Ledger | None:
    return None if snapshot is None else Ledger.restore(snapshot)


def _share(worker: str, generation: int, after_step: int, ledger: Ledger) -> Share:
    return Share(
        generation=generation,
        after_step=after_step,
        leases=ledger.leases(worker),
        totals=ledger.totals(),
        covered_step=ledger.covered_step,
        epochs=ledger.spec.epochs,
        last=ledger.fully_leased,
    )
