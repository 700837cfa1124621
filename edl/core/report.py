"""The job as people see it: a pure view of the leader's machine."""

from __future__ import annotations

from collections import Counter

from edl.core import recount
from edl.core.job import JobMachine
from edl.core.meter import Meter
from edl.protocol.job import Member, Status, WorkerStatus


def status_of(
    machine: JobMachine, term: int, leader: str, refused: dict[str, int], meter: Meter | None = None
) -> Status:
    """What `edl status` shows. `refused`: by the leader's own process."""
    record, ledger = machine.record, machine.ledger
    return Status(
        job=record.job,
        state=record.state,
        reason=record.reason or machine.shortage,
        term=term,
        generation=record.generation,
        leader=leader,
        step=machine.newest_step,
        epoch=ledger.counts().epoch if ledger else 0,
        size=len(record.roster),
        target=record.target,
        min_workers=record.limits.minimum,
        max_workers=record.limits.maximum,
        workers=tuple(_worker(machine, member) for member in record.members),
        data=ledger.counts() if ledger else None,
        spec=ledger.spec if ledger else None,
        refused=_refused(machine, leader, refused),
        recounts=record.driver.begun if record.driver is not None else 0,
        horovodrun=recount.told(record),
        rates=meter.rates if meter is not None else record.rates,
        rate=meter.present if meter is not None else None,
        autoscale=record.governing.autoscale,
        ruling=record.ruling,
        batching=str(record.governing.batching),
        batch=ledger.batch if ledger else 0,
        unfit=record.trials.unfit,
    )


def _refused(machine: JobMachine, leader: str, by_leader: dict[str, int]) -> dict[str, int]:
    """By all daemons that are members now."""
    total = Counter(by_leader)
    for member in machine.record.members:
        observation = machine.seen.observation(member.identity.id)
        if observation is not None and member.identity.id != leader:  # its own are older news of the same
            total.update(observation.refused)
    return dict(total)


def _worker(machine: JobMachine, member: Member) -> WorkerStatus:
    identity, roster = member.identity, machine.record.roster
    sighting = machine.seen.get(identity.id)
    return WorkerStatus(
        id=identity.id,
        rank=roster.index(identity.id) if identity.id in roster else None,
        host=identity.host,
        pid=identity.pid,
        daemon_pid=identity.daemon_pid,
        state=member.state,
        step=sighting.observation.step if sighting else 0,
    )
