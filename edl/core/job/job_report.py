"""The job as people see it: a pure view of what a leader has made durable, and of what it has seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

import msgspec

from edl.core.data.batching import in_force
from edl.core.data.ledgers import restored_ledger
from edl.core.data.sample_ledger import Ledger
from edl.core.driver import horovod_counts
from edl.core.job.counters import certain
from edl.core.job.leader_machine import JobMachine
from edl.core.resize import host_migration
from edl.protocol.record import OVER, JobState, Member, Record, SavingStatus, Stable, Status, WorkerState, WorkerStatus

HEARSAY_S: Final = 0.5  # for so long a new leader may hear what was on its way to the one before


def status_of(
    machine: JobMachine,
    term: int,
    leader: str,
    refused: dict[str, int],
    durable: Record | None = None,
    wall: float = 0.0,
) -> Status:
    """Return what `edl status` shows.

    `refused`: messages refused by the leader's own process. `durable`: the newest durable record, as no more is told
    (I9); None: the machine's is. `wall`: the present time, if a leader reports.
    """
    record = machine.record if durable is None else durable
    ledger = machine.ledger if record is machine.record else _as_trained(record, machine.ledger)
    stable = stable_of(machine, record)
    data = ledger.counts() if ledger else None
    return Status(
        job=record.job,
        state=shown_state(record),
        reason=record.reason or machine.shortage,
        term=term,
        generation=record.generation,
        leader=leader,
        step=machine.newest_step,
        epoch=data.epoch if data else 0,
        size=len(record.roster),
        target=record.target,
        min_workers=record.limits.minimum,
        max_workers=record.limits.maximum,
        workers=tuple(_worker(machine, record, member) for member in record.members),
        data=data,
        spec=ledger.spec if ledger else None,
        bits=record.bits,
        refused=_refused(machine, record, leader, refused),
        recounts=record.sizing.driver.begun if record.sizing.driver is not None else 0,
        horovodrun=horovod_counts.told(record),
        rates=record.sizing.rates,
        autoscale=record.job_policy.autoscale,
        ruling=record.sizing.ruling,
        batching=str(in_force(record.job_policy.batching, record.sizing.asked_batch)),
        batch=ledger.batch if ledger else 0,
        unfit=record.trials.unfit,
        failed_by=record.ending.failed_by,
        resumed="" if record.checkpoints.resumed is None else record.checkpoints.resumed.path,
        base=0 if record.checkpoints.resumed is None else record.checkpoints.resumed.step,
        saving=_saving(machine, record),
        migration=host_migration.shown(record),
        started=record.started,
        tally=certain(record.tally, machine.record.tally, wall),
        stable=stable,
        left=_left(machine.ledger, stable),
        ring=record.ring,
    )


def _saving(machine: JobMachine, record: Record) -> SavingStatus | None:
    policy, saved, interval = record.job_policy.checkpointing, record.checkpoints.saved, machine.save_interval
    if not policy.folder:
        return None
    return SavingStatus(
        every_s=policy.every_s if interval is None else round(interval.seconds, 1),
        every_steps=policy.every_steps,
        why="" if interval is None else interval.why,
        step=0 if saved is None else saved.step,
        path="" if saved is None else saved.path,
        failed=record.checkpoints.save_failure,
        took_s=max((cost.took_s or 0.0 for cost in record.checkpoints.save_costs), default=0.0),
    )


def shown_state(record: Record) -> JobState:
    """Return the state for people: a preempted job shows as such until it is saved, a resumed one as resuming."""
    if record.checkpoints.preemption is not None and record.state not in OVER:
        return JobState.PREEMPTING
    resumes = record.checkpoints.resumed is not None and record.state is JobState.STARTING
    return JobState.RESUMING if resumes else record.state


def _as_trained(record: Record, present: Ledger | None) -> Ledger | None:
    """Return the data on record, with the samples since seen to be trained."""
    if record.ledger is None or present is None:
        return None
    ledger = restored_ledger(record.ledger)
    ledger.commit(max(ledger.step, min(present.step, ledger.covered_step)))
    return ledger


def _refused(machine: JobMachine, record: Record, leader: str, by_leader: dict[str, int]) -> dict[str, int]:
    total = Counter(by_leader)
    for member in record.members:
        observation = machine.seen.observation(member.identity.id)
        if observation is not None and member.identity.id != leader:  # its own are older news of the same
            total.update(observation.refused)
    return dict(total)


def _worker(machine: JobMachine, record: Record, member: Member) -> WorkerStatus:
    identity, roster = member.identity, record.roster
    observed = machine.seen.get(identity.id)
    return WorkerStatus(
        id=identity.id,
        rank=roster.index(identity.id) if identity.id in roster else None,
        host=identity.host,
        pid=identity.pid,
        daemon_pid=identity.daemon_pid,
        state=member.state,
        step=observed.observation.step if observed else _step_of_unseen(machine, member),
        usage=observed.observation.usage if observed else None,
        processes=observed.observation.limbs if observed else (),
    )


def _step_of_unseen(machine: JobMachine, member: Member) -> int:
    """Return the newest step of a member that is done, which is not watched any more; else 0."""
    return machine.newest_step if member.state is WorkerState.DONE else 0


def with_paces(workers: tuple[WorkerStatus, ...], paces: Mapping[str, float]) -> tuple[WorkerStatus, ...]:
    return tuple(msgspec.structs.replace(one, pace=paces[one.id]) if one.id in paces else one for one in workers)


def stable_of(machine: JobMachine, record: Record) -> Stable | None:
    """Return the stable step of the ring's remaining members; a lost member's step counts no more than theirs.

    None while it is not known: a new leader has not heard of all workers, and late reports may come first; or some
    members train by the leases of a ring that is not on record yet. The step is not known either before the first ring
    while the ledger that this life has inherited is not on record.
    """
    ledger, generation = machine.ledger, record.generation
    if not generation and ledger is not None:
        return Stable(0, ledger.trained_by(ledger.step)) if machine.record is record else None
    if not generation:
        return Stable(0, 0)
    members = {member.identity.id for member in record.members}
    left = [worker for worker in record.roster if worker in members]
    step = machine.seen.stable_step(left)
    if machine.reigns_for_s < HEARSAY_S:
        return None
    settled = machine.record.generation == generation == max(map(machine.seen.generation, left), default=generation)
    if step is None or not settled:
        return None
    known = max(step, record.began_step, 0 if ledger is None else ledger.step)
    return Stable(known, 0 if ledger is None else ledger.trained_by(known))


def _left(ledger: Ledger | None, stable: Stable | None) -> int | None:
    if ledger is None or stable is None or ledger.spec.open_ended or ledger.spec.shards:
        return None
    return max(0, ledger.wanted - stable.samples)
