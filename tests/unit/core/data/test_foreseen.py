"""What a ring in place of a broken one trains is leased as it forms, once its survivors have told how far they came."""

from __future__ import annotations

import pytest
from machine_job import LONG, Job

from edl.core.job.leader_inputs import Vanished
from edl.protocol.assignment import Share
from edl.protocol.leader_messages import AskBatch, Phase
from edl.protocol.record import Plan

WORKERS = ("a", "b", "c", "d")


@pytest.fixture
def job() -> Job:
    """Four train, all at step 5."""
    job = Job(np=4)
    for worker in WORKERS:
        job.join(worker)
    for worker in WORKERS:
        job.see(worker, Phase.TRAINING, generation=1, step=5, data=LONG)
    return job


def breaks(job: Job, worker: str, step: int) -> None:
    """Its ring began before its data was known, so it came there by no leases."""
    job.see(worker, Phase.BROKEN, generation=1, step=step, leases_of=0, data=LONG)


def plan(job: Job) -> Plan:
    planned = job.machine.record.plan
    assert planned is not None
    return planned


def share(job: Job, worker: str) -> Share | None:
    generation = plan(job).generation
    return next((one for one in job.orders(worker).shares if one.generation == generation), None)


def share_in_force(job: Job) -> Share:
    return next(one for one in job.orders("a").shares if one.generation == job.machine.record.generation)


def test_survivors_will_agree_on_the_newest_step_that_one_of_them_has_told(job: Job) -> None:
    job.feed(Vanished("d", "killed"))
    breaks(job, "a", 5)
    breaks(job, "b", 6)
    assert (plan(job).foreseen, share(job, "a")) == (None, None), "c may have applied the next step"
    breaks(job, "c", 5)
    assert (plan(job).foreseen, plan(job).after_step) == (6, None)
    held = share(job, "a")
    assert held is not None
    assert (held.after_step, held.foreseen) == (6, True)
    for worker in ("a", "b", "c"):
        job.see(worker, Phase.TRAINING, generation=2, step=7, leases_of=2, data=LONG)
    assert (job.machine.record.generation, job.machine.record.began_step) == (2, 6)
    in_force = share_in_force(job)
    assert (in_force.leases[0].ranges, in_force.foreseen) == (held.leases[0].ranges, False)


def test_where_that_step_is_lost_with_another_member_its_leases_hold_for_none(job: Job) -> None:
    job.feed(Vanished("d", "killed"))
    for worker, step in (("a", 5), ("b", 6), ("c", 5)):
        breaks(job, worker, step)
    job.feed(Vanished("b", "killed"))
    assert plan(job).foreseen is None, "a or c may be in the ring before, and train by what was foreseen for it"
    assert [one.generation for one in job.orders("a").shares if one.foreseen] == [2], "else it would starve there"
    for worker in ("a", "c"):
        job.see(worker, Phase.TRAINING, generation=3, step=5, leases_of=1, data=LONG)
    assert job.machine.record.began_step == 5
    ledger = job.machine.ledger
    assert ledger is not None
    assert ledger.step == 5
    assert ledger.validate() == LONG.total - 5 * 40


def test_who_has_come_by_the_leases_of_before_makes_them_count(job: Job) -> None:
    """It had not heard of those that were foreseen, and has told so."""
    job.feed(Vanished("d", "killed"))
    for worker in ("a", "b", "c"):
        breaks(job, worker, 5)
    for worker in ("a", "b", "c"):
        job.see(worker, Phase.TRAINING, generation=2, step=5, leases_of=1, data=LONG)
    assert job.machine.record.began_step == 5
    assert share_in_force(job).after_step == 5


def test_no_step_in_the_next_ring_counts_by_the_leases_of_before(job: Job) -> None:
    """A newcomer is awaited there yet, and the survivors train."""
    job.unmet.add("e")
    job.join("e")
    job.see("e", Phase.READY, data=LONG)
    job.feed(Vanished("d", "killed"))
    assert plan(job).roster == ("a", "b", "c", "e")
    for worker in ("a", "b", "c"):
        breaks(job, worker, 5)
    for worker in ("a", "b", "c"):
        job.see(worker, Phase.TRAINING, generation=2, step=7, leases_of=2, data=LONG)
    ledger = job.machine.ledger
    assert ledger is not None
    assert (job.machine.record.generation, ledger.step) == (1, 5)
    job.see("e", Phase.TRAINING, generation=2, step=7, leases_of=2, data=LONG)
    ledger = job.machine.ledger
    assert ledger is not None
    assert (job.machine.record.generation, job.machine.record.began_step, ledger.step) == (2, 5, 7)


def test_nothing_is_foreseen_while_leases_are_cut_anew(job: Job) -> None:
    job.feed(AskBatch(80))
    assert job.machine.record.sizing.rebatch is not None
    job.feed(Vanished("d", "killed"))
    for worker in ("a", "b", "c"):
        breaks(job, worker, 5)
    assert (plan(job).foreseen, job.machine.record.sizing.rebatch is None) == (None, False), (
        "how far they read is told as they come"
    )


def test_nothing_is_foreseen_beyond_what_was_leased(job: Job) -> None:
    ledger = job.machine.ledger
    assert ledger is not None
    job.feed(Vanished("d", "killed"))
    for worker in ("a", "b", "c"):
        breaks(job, worker, ledger.covered_step + 1)
    assert plan(job).foreseen is None
