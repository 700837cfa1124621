"""The job as a leader has it in hand: its record, being changed while one input is handled.

Owns: how the record changes, which changes there are (by types: checks find a wrong name or value before it runs), and
what has to change with it: the index of its members, what is remembered of them, how long their states last, the
commands that follow. Does not own: why it changes (`edl.core.job.leader_machine`, `edl.core.resize.target_size`,
`edl.core.switch.generation_switch`, `edl.core.data.lease_grants`), nor when it becomes durable (`edl.core.job.commit`).

`record` is kept. All else is this leader's own and is not: what it has seen, and the record's ledger in a form that can
be worked with.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypedDict, Unpack

import msgspec

from edl.core.data.batching import in_force
from edl.core.data.ledger_versions import LedgerVersions
from edl.core.job import counters
from edl.core.job.leader_inputs import Command, Tell
from edl.core.job.member_states import Cause, moved
from edl.core.job.observations import Observations
from edl.core.worker.divergence_finder import Consequence, causes, told
from edl.facts import CheckpointFailed, Fact, JobFinished, JobHasFailed, JobPreempted, WorkerCorrupted, WorkersDiverged
from edl.protocol.assignment import RingKind
from edl.protocol.checkpoint_record import Cost, Preemption, Remnant, Resumed, Saved, SaveRequest, Saving, SavingFailure
from edl.protocol.data_nouns import LedgerSnapshot
from edl.protocol.divergence_report import Divergence, EndState
from edl.protocol.job_policy import JobPolicy, Rebatch, Replacing
from edl.protocol.record import (
    OVER,
    DriverCount,
    FailedBy,
    Gone,
    Identity,
    JobState,
    Limits,
    Member,
    Migrated,
    Migration,
    Plan,
    Record,
    RollCall,
    Taken,
    Trials,
    WorkerState,
    changed,
)
from edl.protocol.tally import Rate, Tally


class OtherChanges(TypedDict, total=False):
    """Changes to any field but the ledger."""

    state: JobState
    reason: str
    limits: Limits
    target: int
    generation: int
    began_step: int
    roster: tuple[str, ...]
    members: tuple[Member, ...]
    arrivals: int
    plan: Plan | None
    planned: int
    superseded: tuple[Plan, ...]
    gone: tuple[Gone, ...]
    awaited: int
    taken: tuple[Taken, ...]
    driver: DriverCount | None
    job_policy: JobPolicy
    rates: tuple[Rate, ...]
    ruling: str
    replacing: Replacing | None
    rebatch: Rebatch | None
    rebatches: int
    diverged: tuple[int, int, bool]
    differed: str
    finals: tuple[EndState, ...]
    alone: tuple[str, ...]
    shares: dict[str, float]
    asked_batch: int
    voided: dict[str, int]
    keep_s: float
    past: tuple[str, ...]
    unended: str
    begun: bool
    trials: Trials
    roll_call: RollCall | None
    roll_calls: int
    ring: RingKind
    processes: int
    saving: Saving | None
    saves: int
    saved: Saved | None
    save_costs: tuple[Cost, ...]
    save_failure: SavingFailure | None
    losses: int
    remnants: tuple[Remnant, ...]
    save_requests: tuple[SaveRequest, ...]
    save_wanted: int
    preemption: Preemption | None
    resumed: Resumed | None
    migration: Migration | None
    migrations: int
    migrated: tuple[Migrated, ...]
    failed_by: FailedBy
    tally: Tally
    bits: str


class Changes(OtherChanges, total=False):
    """Changes to any field, but the job's name and its start; the version changes by itself."""

    ledger: LedgerSnapshot | None


class PhaseTimes:
    """This leader tells durations in events, never keeps them; a state that began under another one has no length."""

    def __init__(self) -> None:
        self.asked_at: float | None = None  # the request that is being met; None: by another leader, or there is none
        self.planned_at: float | None = None  # the newest switch
        self._at: dict[str, tuple[WorkerState, float]] = {}
        self._spent: dict[tuple[str, WorkerState], float] = {}

    def enter(self, worker: str, state: WorkerState, now: float) -> None:
        """Set the time that the worker spent in the state before."""
        before, since = self._at.get(worker, (state, now))
        if before is not state:
            self._spent[worker, before] = now - since
        self._at[worker] = state, (since if before is state else now)

    def forget(self, worker: str) -> None:
        self._at.pop(worker, None)
        self._spent = {key: spent for key, spent in self._spent.items() if key[0] != worker}

    def spent_ms(self, worker: str, state: WorkerState, now: float) -> int | None:
        """Return how long the worker was in `state`, or has been until now; None: this leader has not seen that."""
        present, since = self._at.get(worker, (None, now))
        spent = now - since if present is state else self._spent.get((worker, state))
        return None if spent is None else round(1000 * spent)


def since_ms(began: float | None, now: float) -> int | None:
    return None if began is None else round(1000 * (now - began))


GONE_KEPT = 32  # with the reason
PAST_KEPT = 4096  # ids without; a trainer that was a member once is refused however long ago that was (`Register`)


LONG_AGO = "that was long ago"


def did_not_end(worker: str, why: str) -> str:
    return f"worker {worker} did not come to the end of its script: {why}"


class WorkingState:
    def __init__(self, record: Record) -> None:
        self.record = record
        self.members = _by_id(record)
        self.ledgers = LedgerVersions(
            record.ledger,
            in_force(record.job_policy.batching, record.sizing.asked_batch),
            record.sizing.shares,
            record.checkpoints.resumed,
        )
        self.seen = Observations()
        self.durations = PhaseTimes()
        self.commands: list[Command] = []
        self.now = 0.0
        self.left_at = -math.inf  # when a worker last ceased to be a member
        self.leaves_as: dict[str, str] = {}  # why each leaver was told to leave. Told in events, not kept
        self.last_loss = ""  # the worker lost last, to be said after why the job cannot go on
        self.to_wall_s = 0.0  # from our clock, on which `now` is, to seconds since 1970
        self.pressing = record.version  # what came later may reach workers when they call again: none runs dry

    def begin(self, now: float) -> None:
        self.commands, self.now = [], now

    # ----------------------------------------------------------------------------------------------------- changes

    def change(self, *, pressing: bool = True, **changes: Unpack[Changes]) -> None:
        self.record = changed(self.record, version=self.record.version + 1, **changes)
        tally = counters.followed(self.record.tally, self.record, self.wall)
        if tally is not self.record.tally:
            self.record = msgspec.structs.replace(self.record, tally=tally)
        if pressing:
            self.pressing = self.record.version
        if "members" in changes:
            self.members = _by_id(self.record)

    def keep_ledger(self, *, pressing: bool = True, **changes: Unpack[OtherChanges]) -> None:
        """Put the ledger as it is now into the record."""
        self.change(ledger=self.ledgers.snapshot(), pressing=pressing, **changes)

    def identify(self, identity: Identity) -> None:
        replaced = (
            msgspec.structs.replace(member, identity=identity) if member.identity.id == identity.id else member
            for member in self.record.members
        )
        self.change(members=tuple(replaced))

    def move(self, worker: str, cause: Cause) -> None:
        self.move_all((worker,), cause)

    def move_all(self, workers: Iterable[str], cause: Cause) -> None:
        """Change several members' states at once: singly, all members of a large ring would be copied each time."""
        after = {worker: moved(self.members[worker], cause) for worker in workers if worker in self.members}
        if after:
            self.change(members=tuple(after.get(member.identity.id, member) for member in self.record.members))
        for worker, member in after.items():
            self.durations.enter(worker, member.state, self.now)

    def remove(self, worker: str, reason: str) -> None:
        """`reason` is for people, and empty when the worker left as it should."""
        members = tuple(m for m in self.record.members if m.identity.id != worker)
        gone = (*self.record.gone, Gone(worker, reason))
        older = tuple(one.worker for one in gone[:-GONE_KEPT])
        past = (*self.record.past, *older)[-PAST_KEPT:] if older else self.record.past
        voided = {one: generation for one, generation in self.record.voided.items() if one != worker}
        self.change(members=members, gone=gone[-GONE_KEPT:], past=past, voided=voided)
        self.left_at = self.now
        self.seen.forget(worker)
        self.leaves_as.pop(worker, None)
        self.durations.forget(worker)

    def end(self, state: JobState, reason: str, by: FailedBy = FailedBy.FAULT) -> None:
        if self.record.state in OVER:
            return
        if self.record.checkpoints.saving is not None:
            self.give_up_saving("the job is over")
        self.change(state=state, reason=reason, plan=None, failed_by=by)
        kinds = {JobState.FINISHED: JobFinished, JobState.PREEMPTED: JobPreempted}
        self.tell(kinds.get(state, JobHasFailed)(reason=reason))

    def tell_diverged(self, found: Divergence, follows: Consequence) -> None:
        """Tell that workers differ, and end the job if that is what follows. The difference that was found first says
        most of the cause, so the end repeats it.
        """
        first, reason = self.record.ending.differed, told(found)
        self.change(differed=first or reason, pressing=False)
        if found.virtual < 0:
            self.tell(_diverged(found, follows, reason))
        if found.corrupt:
            for worker in found.workers:
                self.tell(_corrupted(found, worker, reason))
        if follows is Consequence.FAIL:
            before = f". Before that: {first}" if first else ""
            self.end(JobState.FAILED, reason + before, FailedBy.DIVERGENCE)

    def count_failed_saving(self, reason: str) -> None:
        """Keep the failure on record, so that `edl status` shows it under the next leader too."""
        before = self.record.checkpoints.save_failure
        self.change(save_failure=SavingFailure(reason, 1 if before is None else before.times + 1), pressing=False)

    def give_up_saving(self, reason: str) -> None:
        saving = self.record.checkpoints.saving
        assert saving is not None
        self.change(saving=None, pressing=False)
        self.tell(CheckpointFailed(number=saving.number, reason=reason), saving.after_step)

    def tell(self, fact: Fact, step: int | None = None) -> None:
        """Write down an event with what has changed: of `step`, or of the newest one."""
        self.commands.append(Tell(fact, self.record.generation, self.newest()[0] if step is None else step))
        tally = counters.counted(self.record.tally, fact, self.wall)
        if tally is not self.record.tally:
            self.change(pressing=False, tally=tally)

    # ------------------------------------------------------------------------------------------------------- views

    @property
    def wall(self) -> float:
        return self.now + self.to_wall_s

    def newest(self) -> tuple[int, float]:
        """Return the newest step that any member of the ring is known to have committed, and when that was seen.

        A new leader may hear an old report first, of a step that the one before knew to be stable.
        """
        newest, at = self.seen.newest_step(self.record.roster)
        return max(newest, self.ledgers.step), at

    @property
    def is_seen(self) -> bool:
        """Tell whether a member of the ring was seen. A new leader does not know since when a step is made."""
        return self.seen.newest_step(self.record.roster)[0] >= 0

    def state(self, worker: str) -> WorkerState | None:
        member = self.members.get(worker)
        return member.state if member else None

    def gone(self, worker: str) -> Gone | None:
        """Return the record of a former member; None: it never was a member, or still is."""
        if worker in self.record.past:
            return Gone(worker, LONG_AGO)
        return next((gone for gone in self.record.gone if gone.worker == worker), None)

    def spent_ms(self, worker: str, state: WorkerState) -> int | None:
        return self.durations.spent_ms(worker, state, self.now)

    def over(self) -> str:
        return f"the job is over: {self.record.reason or self.record.state.value}"


def _by_id(record: Record) -> dict[str, Member]:
    return {member.identity.id: member for member in record.members}


def _diverged(found: Divergence, follows: Consequence, reason: str) -> WorkersDiverged:
    return WorkersDiverged(
        workers=found.workers,
        first=found.first,
        differing=found.differing,
        compared=found.compared,
        after_step=found.step,
        equal_step=found.equal_step,
        like=found.root,
        majority=found.majority,
        action=follows.value,
        likely=causes(found),
        told=reason,
    )


def _corrupted(found: Divergence, worker: str, reason: str) -> WorkerCorrupted:
    of_part = found.virtual >= 0
    return WorkerCorrupted(
        worker=worker,
        certain=found.majority,
        after_step=found.step - 1 if of_part else found.step,
        equal_step=found.equal_step,
        virtual_worker=found.virtual if of_part else None,
        told=reason,
    )
