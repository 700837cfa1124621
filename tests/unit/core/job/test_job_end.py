"""How a job ends: by the ends of the last ring's scripts, whichever comes first."""

from __future__ import annotations

import pytest
from machine_job import Job as Machine

from edl.core.job.job_report import status_of
from edl.core.job.leader_inputs import TimePassed, Vanished
from edl.core.job.leader_machine import JobMachine
from edl.core.worker.digest import final
from edl.protocol.data_nouns import DataSpec
from edl.protocol.divergence_report import Fingerprint
from edl.protocol.leader_messages import Phase
from edl.protocol.record import OVER, JobState, WorkerState

SPEC = DataSpec(total=8, epochs=1, batch=2)
LONG = DataSpec(total=2000, epochs=1, batch=2)
STEPS = 2  # of two workers
BEFORE = 1  # the step before the last one
REASON = "OSError: No space left on device"
FAILED = (JobState.FAILED, f"worker w0 did not come to the end of its script: {REASON}")
FINISHED = (JobState.FINISHED, "")


class Job(Machine):
    """Workers in a ring, two of them unless others are named."""

    def __init__(self, spec: DataSpec | None = SPEC, minimum: int = 1, workers: tuple[str, ...] = ("w0", "w1")) -> None:
        super().__init__(np=len(workers), minimum=minimum)
        self.spec = spec
        for worker in workers:
            self.join(worker)
        self.train(1, 0, *workers)

    def train(self, generation: int, step: int, *workers: str) -> None:
        for worker in workers:
            self.see(worker, Phase.TRAINING, generation, step, data=self.spec)

    def raises(self, worker: str, generation: int = 1, step: int = STEPS) -> None:
        self.see(worker, Phase.FAILED, generation, step, reason=REASON, data=self.spec)

    def ends(self, worker: str, generation: int = 1, step: int = STEPS, state: tuple[Fingerprint, ...] = ()) -> None:
        self.see(worker, Phase.DONE, generation, step, data=self.spec, final=state)

    @property
    def end(self) -> tuple[JobState, str]:
        return self.machine.record.state, self.machine.record.reason


@pytest.mark.parametrize("order", [("raises", "ends"), ("ends", "raises")])
@pytest.mark.parametrize("spec", [SPEC, None])
def test_a_script_that_raises_after_the_last_step_fails_the_job_whichever_ends_first(order, spec):
    job = Job(spec)
    job.train(1, STEPS, "w0", "w1")
    for act in order:
        assert job.machine.record.state not in (JobState.FINISHED, JobState.FAILED), "the other may be saving"
        getattr(job, act)("w0" if act == "raises" else "w1")
    assert job.end == FAILED


def test_it_does_so_before_the_others_were_seen_to_have_made_the_last_step():
    job = Job()
    job.train(1, STEPS - 1, "w0", "w1")
    job.raises("w0")
    job.ends("w1")
    assert job.end == FAILED


def test_a_host_that_vanishes_after_the_last_step_fails_the_job():
    """Whether it was in its last save, no other can tell; and none makes up for it."""
    job = Job()
    job.train(1, STEPS, "w0", "w1")
    job.feed(Vanished("w0", REASON))
    job.ends("w1")
    assert job.end == FAILED


def test_no_worker_is_called_away_from_its_last_save_for_another_ring():
    job = Job()
    job.train(1, STEPS, "w0", "w1")
    job.raises("w0")
    assert job.machine.record.plan is None
    assert job.orders("w1").assignment is None


def test_that_all_is_trained_is_seen_from_outside():
    job = Job()
    job.train(1, STEPS - 1, "w0", "w1")
    assert not status_of(job.machine, 1, "w0", {}).spent
    job.train(1, STEPS, "w0", "w1")
    assert status_of(job.machine, 1, "w0", {}).spent


def test_who_has_come_to_the_end_is_shown_with_its_last_step():
    job = Job()
    job.train(1, STEPS, "w0", "w1")
    job.ends("w0")
    job.ends("w1")
    from_record = JobMachine(job.machine.record, job.machine.lead_times)  # no leader is left who has seen them
    shown = [(worker.state, worker.step) for worker in status_of(from_record, 1, "w1", {}).workers]
    assert shown == 2 * [(WorkerState.DONE, STEPS)]


def test_whether_bits_were_held_is_known_once_the_job_is_over():
    """By the record alone: each worker says it with its first step, and where one hears that they are not."""
    job, lost = Job(), "not held since step 2: a worker with another GPU"
    shown = lambda: status_of(JobMachine(job.machine.record, job.machine.lead_times), 2, "", {}).bits  # noqa: E731
    assert shown() == ""
    job.see("w0", Phase.TRAINING, 1, 1, data=SPEC, bits="held")
    assert shown() == "held"
    job.see("w1", Phase.TRAINING, 1, 1, data=SPEC, bits=lost)
    job.see("w0", Phase.TRAINING, 1, STEPS, data=SPEC, bits="held")
    assert shown() == lost
    job.ends("w0")
    job.ends("w1")
    assert job.end == FINISHED and shown() == lost


@pytest.mark.parametrize("seen", [STEPS, STEPS - 1])
def test_the_others_have_as_long_as_a_boot_may_take_for_their_ends(seen):
    """Also where another ring was planned, because they were not seen to have made the last step in time."""
    job = Job()
    job.train(1, seen, "w0", "w1")
    job.raises("w0")
    job.train(1, STEPS, "w1")
    assert (job.machine.record.plan is None) == (seen == STEPS)
    wait(job, 500.0)
    assert [member.identity.id for member in job.machine.record.members] == ["w1"]
    wait(job, 200.0)
    assert job.end == FAILED


def wait(job: Job, seconds: float) -> None:
    until = job.now + seconds
    while job.now < until:
        job.now += 1.0
        job.feed(TimePassed())


def test_a_crash_is_made_up_for_by_a_ring_that_stands_without_it():
    job = Job()
    job.train(1, 1, "w0", "w1")
    job.raises("w0", step=1)
    plan = job.machine.record.plan
    assert plan is not None and plan.roster == ("w1",)
    job.train(plan.generation, 1, "w1")
    job.train(plan.generation, 3, "w1")
    job.ends("w1", plan.generation, 3)
    assert job.end == FINISHED


def made_anew(step: int, *, lost: bool) -> Job:
    """w0 has ended after `step`, and w1 was a step behind: it goes on without the others. `lost`: w2 died then."""
    job = Job(workers=("w0", "w1", "w2"))
    job.train(1, BEFORE, "w0", "w1", "w2")
    job.ends("w0", step=step, state=final(step, []))
    if lost:
        job.feed(Vanished("w2", REASON))
    else:
        job.ends("w2", step=step, state=final(step, []))
    job.see("w1", Phase.BROKEN, 1, BEFORE, reason="reset", data=SPEC)
    wait(job, 2.0)
    plan = job.machine.record.plan
    assert plan is not None and plan.roster == ("w1",)
    job.train(plan.generation, BEFORE, "w1")
    job.machine = JobMachine(job.machine.record, job.machine.lead_times)  # the next leader
    job.ends("w1", plan.generation, BEFORE + 3, state=final(BEFORE + 3, []))
    return job


def test_who_alone_has_made_the_last_step_may_differ_from_those_who_make_it_anew_as_a_member_was_lost():
    """The others never got its result. The job says that it was not compared."""
    state, told = made_anew(BEFORE + 1, lost=True).end
    assert state is JobState.FINISHED
    assert told.startswith("the state of w0 was not compared")


def test_who_has_left_its_loop_before_that_step_differs():
    state, told = made_anew(BEFORE, lost=True).end
    assert state is JobState.FAILED and "the number of steps is" in told


def test_a_step_that_a_worker_makes_anew_though_no_member_was_lost_fails_the_job_if_the_others_differ():
    """Its script may have left an update out, which the others' have made."""
    state, told = made_anew(BEFORE + 1, lost=False).end
    assert state is JobState.FAILED and "the number of steps is" in told


def test_a_job_with_data_of_its_own_whose_others_end_without_another_ring_has_failed():
    job = Job(None)
    job.train(1, 50, "w0", "w1")
    job.raises("w0", step=50)
    job.ends("w1", step=50)
    assert job.end == FAILED


def test_the_next_leader_knows_of_it():
    job = Job()
    job.train(1, STEPS, "w0", "w1")
    job.raises("w0")
    job.machine = JobMachine(job.machine.record, job.machine.lead_times)
    job.ends("w1")
    assert job.end == FAILED


def test_a_leaver_that_leaves_at_the_end_is_not_missed():
    job = Job()
    job.train(1, STEPS, "w0", "w1")
    job.see("w0", Phase.TRAINING, 1, STEPS, data=SPEC, leaving=True)
    assert job.machine.record.members[0].state is WorkerState.LEAVING
    job.ends("w1")
    job.ends("w0")
    assert job.end == FINISHED


def test_who_missed_the_switch_to_the_last_ring_and_ended_in_the_one_before_is_not_awaited():
    """A smaller ring that stands as it was planned begins without it."""
    job = Job(LONG)
    job.join("w2")
    job.see("w2", Phase.READY, data=LONG)
    for worker in ("w0", "w1"):
        job.see(
            worker, Phase.TRAINING, 1, 5, data=LONG, marked=(1, 40) if job.machine.record.sizing.rebatch else (0, 0)
        )
    plan = job.machine.record.plan
    assert plan is not None and plan.after_step is not None and plan.roster == ("w0", "w1", "w2")
    job.train(plan.generation, plan.after_step, "w0", "w2")
    job.ends("w0", plan.generation, plan.after_step)
    job.ends("w2", plan.generation, plan.after_step)
    assert job.machine.record.state is JobState.SCALING, "the third is on its way, or at its end"
    job.ends("w1", 1, plan.after_step)
    assert job.machine.record.state in OVER


@pytest.mark.parametrize("known", [STEPS - 1, STEPS])
def test_after_the_last_step_a_survivor_ends_its_script_in_a_ring_smaller_than_the_job_may_train_with(known):
    """The other one has ended in the ring of before, and comes to no other."""
    job = Job(minimum=2)
    job.train(1, known, "w0", "w1")
    job.see("w0", Phase.BROKEN, 1, STEPS, reason="reset", data=SPEC)
    wait(job, 20.0)  # the other may tell why
    plan = job.machine.record.plan
    assert plan is not None and plan.roster == ("w0", "w1")
    job.ends("w1")
    plan = job.machine.record.plan
    assert plan is not None and plan.roster == ("w0",)
    job.train(plan.generation, STEPS, "w0")
    job.ends("w0", plan.generation)
    assert job.end == FINISHED


def test_who_waits_there_for_a_ring_as_the_other_is_gone_gets_one_and_the_job_fails_for_that_other():
    """Before all was known to be trained, too few were left."""
    job = Job(minimum=2)
    job.train(1, STEPS - 1, "w0", "w1")
    job.see("w0", Phase.BROKEN, 1, STEPS - 1, reason="reset", data=SPEC)
    wait(job, 20.0)
    left = job.machine.record.plan
    assert left is not None
    job.raises("w1", step=STEPS - 1)
    assert job.machine.record.plan is None
    assert "the job needs 2" in status_of(job.machine, 1, "w0", {}).reason
    job.see("w0", Phase.BROKEN, left.generation, STEPS, reason="reset", data=SPEC)
    plan = job.machine.record.plan
    assert plan is not None and plan.roster == ("w0",)
