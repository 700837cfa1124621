"""No member leaves a ring that trains before the next one stands beside it, at all of its members (I14)."""

from __future__ import annotations

import msgspec
from machine_job import LONG, Job, with_newcomers

from edl.core.job.leader_inputs import Reported, TimePassed
from edl.core.job.leader_machine import JobMachine
from edl.facts import SwitchPutOff, WorkerLost, WorkerUnfit
from edl.protocol.leader_messages import Phase
from edl.protocol.record import Plan, WorkerState


def says(job: Job, *workers: str, failure: str = "", generation: int = 0) -> None:
    """The ring that is prepared stands at these; or they say why it does not."""
    roll_call = job.machine.record.roll_call
    number = generation or (roll_call.generation if roll_call else 0)
    for worker in workers:
        last = msgspec.structs.replace(job.last[worker], prepared=(number, failure))
        job.last[worker] = msgspec.structs.replace(last, met=job.machine.seen.met(worker))
        job.feed(Reported(worker, job.last[worker]))


def prepared(job: Job) -> tuple[int, tuple[str, ...]] | None:
    roll_call = job.machine.record.roll_call
    return None if roll_call is None else (roll_call.generation, roll_call.roster)


def plan(job: Job) -> Plan | None:
    return job.machine.record.plan


def test_the_step_is_announced_once_the_next_ring_stands_at_all_members() -> None:
    job = with_newcomers("c", prepares=True)
    assert prepared(job) == (2, ("a", "b", "c"))
    place = job.orders("c").summons.place
    assert place is not None
    assert (place.generation, place.rank, place.size) == (2, 2, 3)
    says(job, "a", "b")
    assert plan(job) is None
    says(job, "c")
    planned = plan(job)
    assert planned is not None
    assert (planned.generation, planned.prepared, planned.after_step is not None) == (2, True, True)
    assigned = job.orders("c").assignment
    assert assigned is not None
    assert (assigned.place, assigned.prepared) == (place, True)
    assert job.orders("c").summons is None


def test_where_one_of_them_forms_rings_in_line_only_all_do() -> None:
    job = with_newcomers(prepares=True)
    job.prepares = False
    job.join("c")
    job.see("c", Phase.READY, data=LONG)
    planned = plan(job)
    assert planned is not None
    assert (planned.generation, planned.prepared) == (2, False)


def test_of_a_newcomer_that_dies_meanwhile_the_others_hear_no_step() -> None:
    job = with_newcomers("c", prepares=True)
    says(job, "a")
    job.see("c", Phase.FAILED, reason="killed", data=LONG)
    assert (plan(job), prepared(job)) == (None, None)
    assert job.orders("a").summons is None
    assert "switch_put_off" not in job.kinds()


def test_no_number_is_used_twice() -> None:
    job = with_newcomers("c", prepares=True)
    says(job, "a", "b")
    job.join("d")
    job.see("d", Phase.READY, data=LONG)
    assert prepared(job) == (3, ("a", "b", "c", "d"))
    says(job, "a", "b", "c", generation=2)
    assert plan(job) is None, "that was another ring"
    says(job, "a", "b", "c", "d")
    assert plan(job) is not None
    assert plan(job).generation == 3


def test_a_death_is_followed_at_once_and_what_was_prepared_is_let_go_of() -> None:
    job = with_newcomers("c", prepares=True)
    says(job, "a", "b")
    job.see("b", Phase.FAILED, generation=1, step=3, reason="killed", data=LONG)
    planned = plan(job)
    assert planned is not None
    assert (planned.generation, planned.roster, planned.after_step, planned.prepared) == (3, ("a", "c"), None, False)
    assert job.orders("a").summons is None


def test_a_newcomer_that_cannot_is_left_out_for_a_while_and_then_called_alone() -> None:
    job = with_newcomers("c", prepares=True)
    job.join("d")
    job.see("d", Phase.READY, data=LONG)
    says(job, "c", failure="no route to host")
    job.pass_time(job.machine.lead_times.torn_s)
    assert prepared(job) is None, "the others are waited for no longer than they may say who else is gone"
    job.feed(TimePassed())
    assert prepared(job) == (4, ("a", "b", "d")), "training goes on without a moment's stop"
    [told] = [tell.fact for tell in job.told if isinstance(tell.fact, SwitchPutOff)]
    assert "c says no route" in told.reason
    says(job, "a", "b", "d")
    job.pass_time(job.machine.lead_times.lease_s)
    planned = plan(job)
    assert planned is not None
    for step in (planned.after_step or 0, 200):
        for worker in ("a", "b", "d"):
            job.see(worker, Phase.TRAINING, generation=4, step=step, data=LONG)
    job.feed(TimePassed())
    assert prepared(job) is not None
    assert prepared(job)[1] == ("a", "b", "d", "c")  # type: ignore[index]


def test_a_newcomer_that_says_nothing_hangs() -> None:
    job = with_newcomers("c", prepares=True)
    job.join("d")
    job.see("d", Phase.READY, data=LONG)
    says(job, "a", "b", "d")
    for _ in range(121):  # two step time-outs, while the leader is there
        job.pass_time(1.0)
    assert prepared(job) == (4, ("a", "b", "d"))
    [lost] = [tell.fact for tell in job.told if isinstance(tell.fact, WorkerLost)]
    assert lost.worker == "c"
    assert "said nothing of the ring 3" in lost.reason


def test_one_that_trains_and_says_nothing_is_not_lost_for_it() -> None:
    job = with_newcomers(prepares=True)
    job.see("b", Phase.TRAINING, generation=1, step=4, data=LONG, leaving=True)
    for _ in range(250):
        job.pass_time(1.0)
    planned = plan(job)
    assert planned is not None
    assert (planned.roster, planned.prepared) == (("a",), False)


def test_newcomers_of_whom_one_is_at_fault_are_called_one_by_one() -> None:
    job = with_newcomers("c", prepares=True)
    job.join("d")
    job.see("d", Phase.READY, data=LONG)
    says(job, "a", "b", "c", "d", failure="connection reset by peer")
    assert (plan(job), prepared(job)) == (None, None)
    job.pass_time(job.machine.lead_times.lease_s)
    assert prepared(job) == (4, ("a", "b", "c"))
    says(job, "a", "b", "c", failure="connection reset by peer")
    job.feed(TimePassed())
    assert prepared(job) == (5, ("a", "b", "d"))
    says(job, "a", "b", "d")
    assert plan(job) is not None


def test_who_says_twice_that_it_cannot_is_unfit() -> None:
    job = with_newcomers("c", prepares=True)
    for _ in range(2):
        says(job, "a", "b", failure="connection reset by peer")
        says(job, "c", failure="no room for another ring")
        job.pass_time(job.machine.lead_times.lease_s)
    [unfit] = [tell.fact for tell in job.told if isinstance(tell.fact, WorkerUnfit)]
    assert (unfit.worker, unfit.reason) == ("c", "no room for another ring")


def unfit(job: Job) -> list[tuple[str, str]]:
    return [(tell.fact.worker, tell.fact.reason) for tell in job.told if isinstance(tell.fact, WorkerUnfit)]


def test_one_with_which_alone_no_ring_stands_twice_is_unfit_though_no_member_names_it() -> None:
    job = with_newcomers("c", prepares=True)
    for _ in range(2):
        assert unfit(job) == []
        says(job, "a", "b", "c", failure="not all members came within 60 s")
        job.pass_time(job.machine.lead_times.lease_s)
    [(worker, reason)] = unfit(job)
    assert worker == "c"
    assert reason == "no ring with it comes to stand beside the one that trains: not all members came within 60 s"
    assert (plan(job), prepared(job)) == (None, None)


def test_of_newcomers_that_fail_together_only_the_one_that_fails_alone_is_unfit() -> None:
    """Another leader calls them one by one, too: that they have failed is on record."""
    job = with_newcomers("c", prepares=True)
    job.join("d")
    job.see("d", Phase.READY, data=LONG)
    says(job, "a", "b", "c", "d", failure="connection reset by peer")
    job.machine = JobMachine(job.machine.record, job.machine.lead_times)
    for worker, last in list(job.last.items()):
        job.feed(Reported(worker, msgspec.structs.replace(last, prepared=(0, ""))))
    assert prepared(job) == (4, ("a", "b", "c"))
    assert unfit(job) == []
    says(job, "a", "b", "c", failure="connection reset by peer")
    assert [worker for worker, _ in unfit(job)] == ["c"]
    job.feed(TimePassed())
    assert prepared(job) == (5, ("a", "b", "d"))
    says(job, "a", "b", "d")
    assert plan(job) is not None


def test_no_newcomer_is_unfit_where_a_member_that_trains_says_nothing() -> None:
    job = with_newcomers("c", prepares=True)
    for _ in range(3):
        says(job, "a", "c", failure="not all members came within 60 s")
        for _ in range(125):  # two step time-outs, while the leader is there
            job.pass_time(1.0)
    assert unfit(job) == []


def test_those_who_stay_when_one_leaves_form_their_ring_in_line_where_they_cannot_beside() -> None:
    job = with_newcomers(prepares=True)
    job.see("b", Phase.TRAINING, generation=1, step=4, data=LONG, leaving=True)
    for generation in (2, 3):
        assert prepared(job) == (generation, ("a",)), "a ring of one has no other to meet, and is prepared, too"
        says(job, "a", failure="no room for another ring")
        job.feed(TimePassed())
    planned = plan(job)
    assert planned is not None
    assert (planned.generation, planned.roster, planned.prepared) == (4, ("a",), False)
    assert planned.after_step is not None


def test_after_a_ring_that_stands_one_that_came_to_nothing_before_is_tried_beside_training_again() -> None:
    job = with_newcomers(prepares=True)
    job.see("b", Phase.TRAINING, generation=1, step=4, data=LONG, leaving=True)
    for _ in range(2):
        says(job, "a", failure="no room for another ring")
        job.feed(TimePassed())
    job.see("a", Phase.TRAINING, generation=4, step=400, data=LONG)
    job.join("c")
    job.see("c", Phase.READY, data=LONG)
    says(job, "a", "c")
    for worker in ("a", "c"):
        job.see(worker, Phase.TRAINING, generation=5, step=800, data=LONG)
    job.see("c", Phase.TRAINING, generation=5, step=801, data=LONG, leaving=True)
    assert (plan(job), prepared(job)) == (None, (6, ("a",)))


def test_another_leader_goes_on_with_what_is_prepared() -> None:
    job = with_newcomers("c", prepares=True)
    says(job, "a", "b", "c", generation=9)
    heir = JobMachine(job.machine.record, job.machine.lead_times)
    for worker in ("a", "b", "c"):
        assert heir.record.plan is None
        heir.handle(Reported(worker, msgspec.structs.replace(job.last[worker], prepared=(2, ""))), 50.0)
    assert heir.record.plan is not None
    assert (heir.record.plan.generation, heir.record.plan.prepared) == (2, True)


def test_one_that_changes_its_mind_before_the_step_is_announced_stops_no_member() -> None:
    job = with_newcomers("c", prepares=True)
    says(job, "a", "b")
    says(job, "a", failure="connection reset by peer")
    says(job, "c", failure="connection reset by peer")
    says(job, "b", failure="connection reset by peer")
    assert (plan(job), prepared(job)) == (None, None)
    states = {member.identity.id: member.state for member in job.machine.record.members}
    assert states == {"a": WorkerState.TRAINING, "b": WorkerState.TRAINING, "c": WorkerState.READY}


FAULT = "an error that is no broken ring: MemoryError"


def test_what_a_member_that_trains_raises_puts_the_switch_off_for_good_and_is_no_newcomers_fault() -> None:
    """Formed in line, after the others have left their ring for it, it would be raised there."""
    job = with_newcomers("c", prepares=True)
    for _ in range(5):
        assert prepared(job) is not None
        says(job, "a", failure=FAULT)
        job.pass_time(job.machine.lead_times.torn_s)
        assert (plan(job), prepared(job)) == (None, None), "though the others have not said anything yet"
        job.pass_time(job.machine.lead_times.lease_s)
    assert unfit(job) == []
    [told] = [tell.fact for tell in job.told if isinstance(tell.fact, SwitchPutOff)]
    assert f"a says {FAULT}" in told.reason


def test_a_newcomer_that_raises_what_those_that_train_do_is_unfit() -> None:
    job = with_newcomers("c", prepares=True)
    for _ in range(2):
        says(job, "a", "b", "c", failure=FAULT)
        job.pass_time(job.machine.lead_times.lease_s)
    assert unfit(job) == [("c", FAULT)]
    assert plan(job) is None
