"""Types of the changes that a leader may make to the record: type checks find a wrong name or value before it runs.

Owns: those names. Does not own: the record (`edl.protocol.record`), nor the act (`edl.core.job.leader_state`).
"""

from __future__ import annotations

from typing import TypedDict

from edl.protocol.checkpoint_record import Cost, Preemption, Resumed, Saved, SaveRequest, Saving, SavingFailure
from edl.protocol.divergence_report import EndState
from edl.protocol.job_policy import JobPolicy, Rebatch, Replacing
from edl.protocol.ledger_value import LedgerSnapshot
from edl.protocol.measurements import Rate
from edl.protocol.migration_record import Migrated, Migration
from edl.protocol.record import DriverCount, FailedBy, Gone, JobState, Limits, Member, Muster, Plan, Taken, Trials
from edl.protocol.ring_places import RingKind
from edl.protocol.tally import Tally


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
    muster: Muster | None
    musters: int
    ring: RingKind
    saving: Saving | None
    saves: int
    saved: Saved | None
    save_costs: tuple[Cost, ...]
    save_failure: SavingFailure | None
    losses: int
    save_requests: tuple[SaveRequest, ...]
    save_wanted: int
    preemption: Preemption | None
    resumed: Resumed | None
    migration: Migration | None
    migrations: int
    migrated: tuple[Migrated, ...]
    failed_by: FailedBy
    tally: Tally


class Changes(OtherChanges, total=False):
    """Changes to any field, but the job's name and its start; the version changes by itself."""

    ledger: LedgerSnapshot | None
