"""The leader's machine, fed by hand: from the first worker to the end of the job."""

from __future__ import annotations

import msgspec
import pytest
from machine_job import SPEC, Job

from edl.core.job.job_report import status_of
from edl.core.job.lead_times import LeadTimes
from edl.core.job.leader_inputs import Acknowledge, Refuse, TimePassed, TookOver, Vanished
from edl.core.job.leader_machine import JobMachine, new_record
from edl.core.switch.generation_switch import GenerationSwitch
from edl.facts import Scaled
from edl.protocol.assignment import RingKind, Verdict
from edl.protocol.data_nouns import ITEMS, DataSpec, ShardPart
from edl.protocol.leader_messages import (
    AskCheckpoint,
    AskScale,
    AskScaleIn,
    AskScaleOut,
    AskStop,
    Phase,
    Register,
    Scaling,
)
from edl.protocol.record import Identity, JobState, WorkerState


def running(np: int = 2, data: DataSpec = SPEC) -> Job:
    job = Job(np)
    workers = [f"w{i}" for i in range(np)]
    for worker in workers:
        job.join(worker)
    for worker in workers:
        job.see(worker, Phase.TRAINING, generation=1)
    for worker in workers:
        job.see(worker, Phase.TRAINING, generation=1, data=data)
    return job


def test_the_first_generation_waits_for_all() -> None:
    job = Job(np=2)
    job.join("w0")
    assert job.machine.record.plan is None
    assert job.orders("w0").wanted == 2
    assert job.orders("w0").present == 1
    job.join("w1")
    assignment = job.orders("w1").assignment
    assert assignment is not None
    assert (assignment.place.rank, assignment.place.size, assignment.newcomers) == (1, 2, 0)
    job.see("w0", Phase.TRAINING, generation=1)
    assert job.machine.record.state is JobState.STARTING
    job.see("w1", Phase.TRAINING, generation=1)
    assert job.machine.record.state is JobState.RUNNING
    assert job.orders("w1").assignment is None
    assert job.kinds() == ["job_started", "worker_joining", "worker_joining", "switch_scheduled"]


def test_what_follows_from_inputs_that_come_together_is_seen_with_the_last() -> None:
    """A ring of a thousand reports within a moment; to look at all of it after each would take its square."""
    machine = JobMachine(new_record("j", 0.0), LeadTimes.of(10.0))
    for number in range(3):
        register = Register(Identity(f"w{number}", "host", "127.0.0.1", 100, 101), 2, 1, 0)
        machine.handle(register, number / 100, more=number < 2)
        assert (machine.record.plan is None) == (number < 2)
    assert len(machine.record.members) == 3


def test_data_is_leased_to_all_once_one_opens_it() -> None:
    job = running()
    for worker in ("w0", "w1"):
        (share,) = job.orders(worker).shares
        assert (share.generation, share.after_step) == (1, 0)
        assert share.covered_step >= 16


@pytest.mark.parametrize(("step", "presses"), [(1000, False), (2400, True)])  # of 2,500 that are leased, 10 ms each
def test_leases_press_only_where_a_member_would_run_dry_before_its_call_for_orders_ends(
    step: int, presses: bool
) -> None:
    machine = (job := running(data=DataSpec(total=10**6, epochs=1, batch=1))).machine
    covered, pressing = job.orders("w0").shares[0].covered_step, machine.pressing
    assert covered == 2500
    job.see("w0", Phase.TRAINING, generation=1, step=step)
    assert job.orders("w0").shares[0].covered_step == step + 2500
    assert (machine.pressing > pressing) is presses
    job.see("w1", Phase.TRAINING, generation=1, step=step, leaving=True)
    assert machine.pressing == machine.record.version, "all else presses"


def test_leases_press_where_those_before_have_not_reached_all_and_steps_are_found_to_be_shorter() -> None:
    """TensorFlow's first steps take seconds, as a graph is traced; 64 of those last beyond any call for orders."""
    machine = (job := Job(2)).machine
    for worker in ("w0", "w1"):
        job.join(worker)
    for data in (None, DataSpec(total=10**6, epochs=1, batch=1)):
        for worker in ("w0", "w1"):
            job.see(worker, Phase.TRAINING, generation=1, data=data, step_time_s=0.0)
    assert job.orders("w0").shares[0].covered_step == 64
    known = machine.pressing
    job.see("w0", Phase.TRAINING, generation=1, step=11, step_time_s=0.27)
    assert job.orders("w0").shares[0].covered_step > 64
    assert machine.pressing == known, "more than a call's time is left"
    job.see("w0", Phase.TRAINING, generation=1, step=22, step_time_s=0.14)
    job.pass_time(0.5)
    assert machine.pressing > known
    pressed = machine.pressing
    job.pass_time(0.5)
    assert machine.pressing == pressed, "they have heard"


def test_a_stream_of_which_no_shard_has_an_item_fails_the_job() -> None:
    job = running(data=DataSpec(2 * ITEMS, 1, 2, shards=2, source="stream:2:x"))
    for worker, part in (("w0", 0), ("w1", 1)):
        assert job.machine.record.state is JobState.RUNNING
        job.see(worker, Phase.TRAINING, generation=1, stream=(ShardPart(part, ended=True),))
    assert job.machine.record.state is JobState.FAILED
    assert "no shard of the stream has an item" in job.machine.record.reason


def test_a_stream_whose_last_shard_has_an_item_trains_it() -> None:
    job = running(data=DataSpec(2 * ITEMS, 1, 2, shards=2, source="stream:2:x"))
    job.see("w0", Phase.TRAINING, generation=1, stream=(ShardPart(0, ended=True),))
    job.see("w1", Phase.TRAINING, generation=1, stream=(ShardPart(1, known=1, ended=True),))
    assert job.machine.record.state is JobState.RUNNING


def test_more_epochs_asked_for_while_a_switch_is_planned_are_not_forgotten() -> None:
    """Found by 50 changes of size: a lone survivor opened the next epoch just before the switch, and waited forever."""
    job = running()
    job.join("w2")
    for phase in (Phase.REHEARSING, Phase.READY):
        job.see("w2", phase)
    plan = job.machine.record.plan
    assert plan is not None
    assert plan.after_step is not None
    more = msgspec.structs.replace(SPEC, epochs=2)
    job.see("w0", Phase.TRAINING, generation=1, step=plan.after_step, data=more)
    for worker in ("w0", "w1", "w2"):
        job.see(worker, Phase.TRAINING, generation=plan.generation, step=plan.after_step, data=SPEC)
    assert job.machine.record.generation == plan.generation
    assert job.machine.ledger is not None
    assert job.machine.ledger.spec.epochs == 2


def test_a_switch_waits_when_the_known_data_ends_before_the_word_is_there() -> None:
    """A worker that has trained it all waits for more, where no orders reach it: all waited for a step time-out."""
    job = running()
    ledger = job.machine.ledger
    assert ledger is not None
    for worker in ("w0", "w1"):
        job.see(worker, Phase.TRAINING, generation=1, step=ledger.covered_step - 1, data=SPEC)
    job.join("w2")
    for phase in (Phase.REHEARSING, Phase.READY):
        job.see("w2", phase)
    assert job.machine.record.plan is None
    job.see("w0", Phase.TRAINING, generation=1, step=50, data=msgspec.structs.replace(SPEC, epochs=9))
    plan = job.machine.record.plan
    assert plan is not None
    assert plan.after_step is not None
    assert plan.after_step > 50


def test_other_data_on_one_worker_fails_the_job() -> None:
    job = running()
    job.see("w1", Phase.TRAINING, generation=1, data=DataSpec(total=999, epochs=1, batch=10))
    assert job.machine.record.state is JobState.FAILED
    assert "other data" in job.machine.record.reason
    assert job.orders("w0").verdict is Verdict.STOP


def test_a_newcomer_boots_alone_and_enters_when_ready() -> None:
    job = running()
    job.join("w2")
    assert job.orders("w2").boot_alone
    assert job.machine.record.plan is None  # I4: no member waits for a boot
    job.see("w2", Phase.REHEARSING, data=SPEC)
    job.see("w0", Phase.TRAINING, generation=1, step=10)
    job.see("w1", Phase.TRAINING, generation=1, step=10)
    job.see("w2", Phase.READY, data=SPEC)
    plan = job.machine.record.plan
    assert plan is not None
    assert (plan.generation, plan.roster) == (2, ("w0", "w1", "w2"))
    assert plan.after_step is not None
    assert plan.after_step > 10
    newcomer = job.orders("w2")
    assert newcomer.assignment is not None
    assert newcomer.assignment.newcomers == 1
    assert [share.generation for share in newcomer.shares] == [2]
    assert [share.generation for share in job.orders("w0").shares] == [1, 2]
    for worker in ("w0", "w1", "w2"):
        job.see(worker, Phase.TRAINING, generation=2, step=plan.after_step or 0)
    assert job.machine.record.roster == ("w0", "w1", "w2")
    assert job.machine.record.began_step == plan.after_step
    scaled = job.told[-1]
    assert isinstance(scaled.fact, Scaled)
    assert (scaled.fact.before, scaled.fact.after) == (2, 3)


def test_a_leaver_goes_after_the_switch() -> None:
    job = running()
    job.see("w1", Phase.TRAINING, generation=1, step=5, leaving=True)
    plan = job.machine.record.plan
    assert plan is not None
    assert plan.roster == ("w0",)
    orders = job.orders("w1")
    assert (orders.verdict, orders.leave_after_step) == (Verdict.LEAVE, plan.after_step)
    job.see("w0", Phase.TRAINING, generation=2, step=plan.after_step or 0)
    job.see("w1", Phase.DONE, generation=1, step=plan.after_step or 0)
    assert job.kinds()[-1] == "worker_left"
    assert job.machine.record.state is JobState.RUNNING
    assert [m.identity.id for m in job.machine.record.members] == ["w0"]


def test_a_planned_ring_that_stands_before_its_step_was_forced_by_a_death() -> None:
    job = running(3)
    job.see("w1", Phase.TRAINING, generation=1, step=5, leaving=True)
    plan = job.machine.record.plan
    assert plan is not None
    job.feed(Vanished("w1", "gone"))
    for worker in ("w0", "w2"):
        job.see(worker, Phase.BROKEN, generation=1, step=5, reason="reset by peer")
    for worker in ("w0", "w2"):
        job.see(worker, Phase.TRAINING, generation=plan.generation, step=5, leases_of=1)
    (scaled,) = [tell.fact for tell in job.told if isinstance(tell.fact, Scaled)]
    assert scaled.forced
    assert job.machine.record.began_step == 5


def test_a_death_makes_the_survivors_switch_at_once() -> None:
    job = running(3)
    job.feed(Vanished("w1", "gone"))
    plan = job.machine.record.plan
    assert plan is not None
    assert plan.roster == ("w0", "w2")
    job.see("w0", Phase.BROKEN, generation=1, step=7)
    plan = job.machine.record.plan
    assert plan is not None
    assert plan.after_step is None
    job.see("w0", Phase.TRAINING, generation=plan.generation, step=8)
    job.see("w2", Phase.TRAINING, generation=plan.generation, step=8)
    assert job.machine.record.began_step == 8
    assert job.kinds().count("batch_voided") == 1
    assert job.machine.ledger is not None
    assert job.machine.ledger.step == 8


def test_the_job_is_finished_when_all_scripts_ended_and_all_is_trained() -> None:
    job = running()
    for _ in range(20):
        ledger = job.machine.ledger
        assert ledger is not None
        if ledger.exhausted:
            break
        for worker in ("w0", "w1"):
            job.see(worker, Phase.TRAINING, generation=1, step=ledger.covered_step, data=SPEC)
    job.see("w0", Phase.DONE, generation=1, step=50)
    assert job.machine.record.state is JobState.RUNNING
    assert job.machine.record.plan is None
    job.see("w1", Phase.DONE, generation=1, step=50)
    assert job.machine.record.state is JobState.FINISHED
    assert job.kinds()[-2:] == ["epoch_ended", "job_finished"]


def test_scripts_may_break_off_before_their_data_ends() -> None:
    job = running()
    job.see("w0", Phase.DONE, generation=1, step=3)
    job.see("w1", Phase.DONE, generation=1, step=3)
    assert job.machine.record.state is JobState.FINISHED
    assert job.machine.record.reason == "all scripts ended at step 3, before their data did"


def test_below_the_minimum_the_job_waits_for_others_as_long_as_a_boot_may_take() -> None:
    job = Job(np=2, minimum=2)
    job.join("w0")
    job.join("w1")
    for worker in ("w0", "w1"):
        job.see(worker, Phase.TRAINING, generation=1)
    job.see("w1", Phase.FAILED, generation=1, reason="ValueError: no")
    assert job.machine.record.state is JobState.RUNNING
    assert "1 worker is left and the job needs 2" in status_of(job.machine, 1, "w0", {}).reason
    assert job.kinds()[-1] == "too_few_workers"
    job.see("w0", Phase.BROKEN, generation=1, reason="a peer is gone")
    assert job.machine.record.plan is None
    job.now += 599
    job.feed(TimePassed())
    assert job.machine.record.state is JobState.RUNNING, job.machine.record.reason
    job.now += 1
    job.feed(TimePassed())
    assert job.machine.record.state is JobState.FAILED
    assert "ValueError: no" in job.machine.record.reason


def test_below_the_minimum_the_job_goes_on_with_a_newcomer_that_comes_in_time() -> None:
    job = Job(np=2, minimum=2)
    job.join("w0")
    job.join("w1")
    for worker in ("w0", "w1"):
        job.see(worker, Phase.TRAINING, generation=1)
    job.see("w1", Phase.FAILED, generation=1)
    job.see("w0", Phase.BROKEN, generation=1, reason="a peer is gone")
    job.join("w2")
    job.see("w2", Phase.READY)
    assert job.machine.record.plan is not None
    assert (job.machine.record.plan.roster, job.machine.record.plan.after_step) == (("w0", "w2"), None)
    assert status_of(job.machine, 1, "w0", {}).reason == ""


def test_the_maximum_is_refused_clearly() -> None:
    job = Job(np=1, maximum=1)
    job.join("w0")
    (refusal,) = [command for command in job.join("w1") if isinstance(command, Refuse)]
    assert "at most 1" in refusal.reason


def test_an_older_generation_is_refused_as_stale() -> None:
    job = running()
    (refusal,) = [c for c in job.see("w0", Phase.TRAINING, generation=0) if isinstance(c, Refuse)]
    assert refusal.stale == "generation"


def test_a_new_leader_goes_on_from_the_record() -> None:
    job = running()
    job.join("w2")
    job.see("w2", Phase.READY, data=SPEC)
    record = job.machine.record
    assert record.plan is not None
    heir = JobMachine(record, LeadTimes.of(10.0))
    heir.handle(TookOver(frozenset({"w0", "w1", "w2"})), 100.0)
    assert heir.record == record


def test_the_status_counts_what_all_daemons_have_refused() -> None:
    job = running(np=3)
    job.see("w0", Phase.TRAINING, generation=1, step=1, refused={"unauthentic": 5})  # the leader: it knows better
    job.see("w1", Phase.TRAINING, generation=1, step=1, refused={"unauthentic": 2, "replayed": 1})
    job.see("w2", Phase.TRAINING, generation=1, step=1, refused={"unauthentic": 1})
    job.see("w2", Phase.TRAINING, generation=1, step=1, refused={"unauthentic": 4})
    assert status_of(job.machine, 1, "w0", {"unauthentic": 7}).refused == {"unauthentic": 13, "replayed": 1}


def test_stop_ends_the_job_for_all() -> None:
    job = running()
    job.feed(AskStop("stopped by the user"))
    assert job.orders("w0").verdict is Verdict.STOP
    assert job.machine.record.state is JobState.FAILED


@pytest.mark.parametrize("state", list(WorkerState))
def test_every_state_of_a_worker_is_drawn(state: WorkerState) -> None:
    from edl.core.job import member_states

    assert member_states.__doc__ is not None
    assert state.name in member_states.__doc__


def test_shrinking_tells_the_latest_comers_to_leave() -> None:
    job = running(3)
    job.feed(AskScale(1))
    states = {member.identity.id: member.state for member in job.machine.record.members}
    assert states == {"w0": WorkerState.SWITCHING, "w1": WorkerState.LEAVING, "w2": WorkerState.LEAVING}
    plan = job.machine.record.plan
    assert plan is not None
    assert plan.roster == ("w0",)
    assert job.machine.record.target == 1


def test_growing_changes_the_target_and_waits_for_workers() -> None:
    job = running()
    job.feed(AskScale(4))
    assert (job.machine.record.target, job.machine.record.plan) == (4, None)


@pytest.mark.parametrize("asked", [AskScale(3, "r"), AskScaleOut(1, "r"), AskScaleIn(1, "r")])
def test_a_request_before_the_first_worker_is_asked_again_as_that_worker_brings_the_size(asked: Scaling) -> None:
    job = Job(np=2, minimum=1, maximum=4)
    assert job.feed(asked) == [Refuse("none of its workers has joined yet", retry=True)]
    job.join("w0")
    assert (job.machine.record.target, job.machine.record.sizing.taken) == (2, ())
    assert Acknowledge(3) in job.feed(AskScale(3, "r"))
    assert job.machine.record.target == 3


def test_a_checkpoint_before_the_first_worker_is_asked_again_as_that_worker_brings_the_folder() -> None:
    job = Job(np=2, minimum=1, maximum=4)
    assert job.feed(AskCheckpoint("r")) == [Refuse("none of its workers has joined yet", retry=True)]
    job.join("w0")
    refused = Refuse("the job is not saved: it was started without a folder for checkpoints (edl run --checkpoint DIR)")
    assert job.feed(AskCheckpoint("r")) == [refused]


@pytest.mark.parametrize(("size", "why"), [(0, "at least 1"), (9, "at most 4")])
def test_a_size_outside_the_limits_is_refused_with_the_limit(size: int, why: str) -> None:
    job = Job(np=2, minimum=1, maximum=4)
    job.join("w0")
    (refusal,) = [command for command in job.feed(AskScale(size)) if isinstance(command, Refuse)]
    assert why in refusal.reason


def test_a_worker_that_says_another_ring_is_not_let_in() -> None:
    job = Job(np=2, minimum=1, maximum=4)
    job.feed(Register(Identity("w0", "host", "127.0.0.1", 1, 2), 2, 1, 4, ring=RingKind.TORCH))
    (refusal,) = job.feed(Register(Identity("w1", "host", "127.0.0.1", 3, 4), 2, 1, 4, ring=RingKind.HOROVOD))
    assert isinstance(refusal, Refuse)
    assert refusal.reason.startswith("the job trains with --ring torch, not horovod: say the same on all workers")
    assert "\n" not in refusal.reason
    job.feed(Register(Identity("w2", "host", "127.0.0.1", 5, 6), 2, 1, 4, ring=RingKind.TORCH))
    assert [member.identity.id for member in job.machine.record.members] == ["w0", "w2"]


def test_a_worker_of_another_number_of_processes_is_not_let_in() -> None:
    job = Job(np=2, minimum=1, maximum=4)
    job.feed(Register(Identity("w0", "host", "127.0.0.1", 1, 2), 2, 1, 4, processes=2))
    (refusal,) = job.feed(Register(Identity("w1", "host", "127.0.0.1", 3, 4), 2, 1, 4))
    assert isinstance(refusal, Refuse)
    assert refusal.reason.startswith("the job's workers have 2 processes each, not 1: say the same --processes")
    job.feed(Register(Identity("w2", "host", "127.0.0.1", 5, 6), 2, 1, 4, processes=2))
    assert [member.identity.id for member in job.machine.record.members] == ["w0", "w2"]


def test_a_second_request_during_a_scaling_is_not_lost() -> None:
    job = running(3, msgspec.structs.replace(SPEC, total=100_000))
    job.feed(AskScale(2))
    job.feed(AskScale(1))
    plan = job.machine.record.plan
    assert plan is not None
    assert plan.roster == ("w0", "w1")  # announced already: the second follows it
    for worker in ("w0", "w1"):
        job.see(worker, Phase.TRAINING, generation=2, step=plan.after_step or 0)
    plan = job.machine.record.plan
    assert plan is not None
    assert plan.roster == ("w0",)


def test_only_the_last_report_of_a_step_is_followed_by_a_look_at_all_members(monkeypatch):
    job, looks = running(3), []
    follow = GenerationSwitch.follow
    monkeypatch.setattr(GenerationSwitch, "follow", lambda switching: (looks.append(job.now), follow(switching)))
    for step in (1, 2, 5):
        for worker in ("w2", "w0", "w1"):
            assert job.machine.ledger.step < step
            job.see(worker, Phase.TRAINING, generation=1, step=step, data=SPEC)
        assert job.machine.ledger.step == step
    assert len(looks) == 3


def test_a_step_becomes_stable_though_the_slowest_worker_is_lost():
    job = running(3)
    for worker in ("w0", "w1"):
        job.see(worker, Phase.TRAINING, generation=1, step=4, data=SPEC)
    assert job.machine.ledger.step == 0
    job.feed(Vanished("w2", "gone"))
    job.see("w0", Phase.TRAINING, generation=1, step=5, data=SPEC)
    job.see("w1", Phase.TRAINING, generation=1, step=5, data=SPEC)
    assert job.machine.ledger.step == 5
