"""No member is told to leave a ring that trains before the members of the next one have found each other (I14)."""

from __future__ import annotations

import pytest
from machine_job import LONG, Job, with_newcomers

from edl.core.job.leader_inputs import TimePassed
from edl.core.job.leader_machine import JobMachine
from edl.facts import SwitchPutOff
from edl.protocol.leader_messages import Phase
from edl.protocol.record import RollCall


def names(job: Job, worker: str, *ranks: int) -> None:
    """Its daemon has not reached these."""
    roll_call = job.machine.record.roll_call
    assert roll_call is not None
    job.see(worker, Phase.TRAINING, generation=1, step=3, data=LONG, met=(roll_call.number, *ranks))


def test_the_step_is_announced_once_all_have_met() -> None:
    job = with_newcomers("c", away=("c",))
    record = job.machine.record
    assert (record.plan, record.roll_call) == (None, RollCall(1, ("a", "b", "c")))
    called = job.orders("a").summons
    assert called is not None
    assert called.number == 1
    assert job.orders("a").assignment is None
    job.unmet.clear()
    job.feed(TimePassed())
    assert job.machine.record.plan is not None
    assert job.machine.record.roll_call is None
    assert job.orders("a").summons is None


def test_a_newcomer_that_is_gone_before_all_have_met_costs_nothing() -> None:
    job = with_newcomers("c", away=("c",))
    job.see("c", Phase.FAILED, reason="killed", data=LONG)
    record = job.machine.record
    assert (record.plan, record.roll_call, record.planned) == (None, None, 1)


def test_a_newcomer_that_is_not_found_is_left_out_for_a_while_and_told_of_once() -> None:
    job = with_newcomers("c", "d", away=("c",))
    names(job, "b", 2)
    assert job.machine.record.plan is None
    job.pass_time(job.machine.lead_times.roll_call_s)
    job.feed(TimePassed())
    assert job.machine.record.plan is not None
    assert job.machine.record.plan.roster == ("a", "b", "d")
    [told] = [tell.fact for tell in job.told if isinstance(tell.fact, SwitchPutOff)]
    assert told.reason.endswith("did not reach c")
    for worker in ("a", "b", "d"):
        job.see(worker, Phase.TRAINING, generation=2, step=job.machine.record.plan.after_step or 0, data=LONG)
    job.unmet.clear()
    job.pass_time(job.machine.lead_times.lease_s)
    assert job.machine.record.plan is not None
    assert job.machine.record.plan.roster == ("a", "b", "d", "c")


def test_a_worker_that_is_gone_is_not_remembered_for_having_been_missed() -> None:
    job = with_newcomers()
    for number in range(5):
        worker = f"c{number}"
        job.unmet = {worker}
        job.join(worker)
        job.see(worker, Phase.READY, data=LONG)
        job.pass_time(job.machine.lead_times.roll_call_s)
        job.pass_time(job.machine.lead_times.roll_call_s)
        assert job.kinds().count("switch_put_off") == number + 1
        assert job.machine._switching._roll_calling._told == {worker}
        job.see(worker, Phase.FAILED, reason="killed", data=LONG)


def test_a_switch_waits_for_those_who_train() -> None:
    job = with_newcomers("c", away=("b",))
    job.pass_time(job.machine.lead_times.roll_call_s)
    job.pass_time(job.machine.lead_times.roll_call_s)
    assert (job.machine.record.plan, job.kinds().count("switch_put_off")) == (None, 1)
    job.unmet.clear()
    job.feed(TimePassed())
    assert job.machine.record.plan is not None


def test_another_leader_goes_on_with_the_call() -> None:
    job = with_newcomers("c", away=("c",))
    heir = JobMachine(job.machine.record, job.machine.lead_times)
    heir.handle(TimePassed(), 50.0)
    assert heir.record.roll_call == job.machine.record.roll_call
    job.machine = heir
    for worker, phase, generation in (("a", Phase.TRAINING, 1), ("b", Phase.TRAINING, 1), ("c", Phase.READY, 0)):
        job.see(worker, phase, generation=generation, step=3 * generation, data=LONG)
    assert heir.record.plan is None
    job.unmet.clear()
    job.now = 51.0
    job.feed(TimePassed())
    assert heir.record.plan is not None


def test_the_step_is_the_farther_away_the_longer_the_call_took() -> None:
    """Where workers share few cores, a word takes long: that of the switch will take as long as the call has."""
    distances = []
    for took_s in (0.0, 2.0):
        job = with_newcomers("c", away=("c",))
        job.pass_time(took_s)
        job.unmet.clear()
        job.see("a", Phase.TRAINING, generation=1, step=3, data=LONG)
        plan = job.machine.record.plan
        assert plan is not None
        assert plan.after_step is not None
        distances.append(plan.after_step - 3)
    assert distances[0] == pytest.approx(30, abs=5)
    assert distances[1] == pytest.approx(200, abs=15)
