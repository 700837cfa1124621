"""When a job is saved, and what becomes of that; `tests/transcripts` has whole stories of it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from edl.core.data.ledgers import new_ledger, restored_ledger
from edl.core.data.resume_position import is_inherited, projected
from edl.core.job.commit import Publish, WriteManifest, Writing, Written, decide
from edl.core.job.job_report import status_of
from edl.core.job.lead_times import LeadTimes
from edl.core.job.leader_inputs import (
    PublishingFailed,
    PublishSaving,
    Refuse,
    Reported,
    Ruled,
    SavingPublished,
    TellOfSaving,
    TimePassed,
    TookOver,
)
from edl.core.job.leader_machine import JobMachine, new_record
from edl.core.job.orders import OrderBook
from edl.protocol.checkpoint_record import Checkpointing, FileInfo, PartInfo, Resumed, SavingFailure
from edl.protocol.data_nouns import DataSpec
from edl.protocol.job_policy import JobPolicy
from edl.protocol.leader_messages import AskCheckpoint, AskPreempt, Observation, Phase, Register
from edl.protocol.record import Identity, JobState, decode_record, encode_record
from tests.model.saving_checks import trained_by

DATA = DataSpec(total=1_000_000, epochs=1, batch=10)
LEAD = LeadTimes.of(10.0)
PART = PartInfo((FileInfo("part", 100, ""),), stall_ms=3.0)


class Job:
    """Two workers that train."""

    processes = 1
    workers: tuple[str, ...] = ("a", "b")

    def __init__(
        self, spec: DataSpec = DATA, resumed: Resumed | None = None, *, minimum: int = 1, **policy: Any
    ) -> None:
        self.machine = JobMachine(new_record("j", 0.0), LEAD)
        self.now = 0.0
        self.last: dict[str, Observation] = {}
        checkpointing = Checkpointing(**{"folder": "/c", **policy})
        for worker in self.workers:
            identity = Identity(worker, "h", "h", 1, 1)
            policy_ = JobPolicy(checkpointing=checkpointing)
            which = Register(
                identity, len(self.workers), minimum, 0, job_policy=policy_, resumed=resumed, processes=self.processes
            )
            self.feed(which)
        for worker in self.workers:
            self.see(worker, phase=Phase.TRAINING, generation=1, data=spec)

    def feed(self, happened: Any) -> list[Any]:
        self.now += 0.001
        return list(self.machine.handle(happened, self.now))

    def see(self, worker: str, **changes: Any) -> list[Any]:
        known = fields(self.last[worker]) if worker in self.last else {}
        blank = {"step": 0, "leases_of": 1, "step_time_s": 0.1, "pause": None, "leaving": False, "reason": ""}
        self.last[worker] = Observation(**{**blank, **known, **changes, "at": self.now})
        return self.feed(Reported(worker, self.last[worker]))

    def both(self, **changes: Any) -> list[Any]:
        return [*self.see("a", **changes), *self.see("b", **changes)]

    def pass_time(self, seconds: float) -> list[Any]:
        self.now += seconds
        return self.feed(TimePassed())

    def store(self, worker: str) -> list[Any]:
        return self.see(worker, saved_part=(self.record.checkpoints.saves, PART))

    def lead_anew(self) -> list[Any]:
        self.machine = JobMachine(self.machine.record, LEAD)
        return self.feed(TookOver(frozenset({"a", "b"})))

    @property
    def record(self):
        return self.machine.record

    @property
    def shown_failure(self) -> SavingFailure | None:
        """By `edl status`."""
        saving = status_of(self.machine, 1, "a", {}).saving
        return None if saving is None else saving.failed


def fields(observation: Observation) -> dict[str, Any]:
    return {name: getattr(observation, name) for name in observation.__struct_fields__}


def kinds(commands: list[Any]) -> list[str]:
    return [one.fact.kind.value for one in commands if hasattr(one, "fact")]


def test_what_is_announced_is_told_anew_where_leases_are_cut_before_its_step() -> None:
    job = Job(every_steps=100)
    job.both(step=99, step_time_s=0.001)
    job.both(step=100)
    saving = job.record.checkpoints.saving
    assert saving is not None and saving.after_step > 300  # steps are short, and many until all have heard of it
    job.both(step=101, step_time_s=0.5)  # then they are long
    shares = {"a": 0.3, "b": 1.0}
    job.feed(Ruled(2, (), "uneven", {}, act=True, shares=shares))
    job.both(step=102)
    mark = job.record.sizing.rebatch
    assert mark is not None and mark.mark < saving.after_step
    job.both(marked=(mark.number, mark.mark))
    again = job.record.checkpoints.saving
    assert job.record.sizing.rebatch is None
    assert again is not None and again.number == saving.number and again.ledger != saving.ledger
    assert trained_by(again.ledger) == trained_by(projected(restored_ledger(job.record.ledger), saving.after_step))


def test_a_saving_whose_step_the_data_does_not_reach_any_more_is_given_up() -> None:
    job = Job(DataSpec(total=8000, epochs=1, batch=10), every_steps=100)
    job.both(step=99, step_time_s=0.001)
    job.both(step=100)
    assert job.record.checkpoints.saving.after_step == 400  # the last step: so many of 20 samples are left
    job.both(step=101, step_time_s=0.5)
    job.machine.ledger.resize((20, 20))
    job.both(step=102)
    mark = job.record.sizing.rebatch
    commands = job.both(marked=(mark.number, mark.mark))
    assert kinds(commands).count("checkpoint_failed") == 1
    assert job.record.checkpoints.saving is None


def test_a_new_leader_reckons_no_pace_from_steps_that_it_has_not_seen() -> None:
    job = Job(every_steps=100)
    job.now = 10_000.0  # its clock began then, and no step did
    job.both(step=50)
    job.lead_anew()
    job.pass_time(0.5)
    job.both(step=90)
    for step in (95, 100):
        job.pass_time(0.5)
        job.both(step=step)
    saving = job.record.checkpoints.saving
    assert saving is not None
    job.pass_time(0.5)
    job.both(step=saving.after_step + 1)
    commands = [*job.store("a"), *job.store("b"), *job.feed(SavingPublished(saving.number))]
    [durable] = [one.fact for one in commands if hasattr(one, "fact") and one.fact.kind.value == "checkpoint_durable"]
    assert durable.lost_ms is None or abs(durable.lost_ms) < 1000


def test_leaders_that_follow_each_other_quickly_do_not_put_it_off() -> None:
    job = Job(every_s=60.0)
    begun = 0
    for minute in range(1, 40):
        job.pass_time(5.0)
        job.both(step=50 * minute)  # of 0.1 s each
        begun = job.record.checkpoints.saves
        if begun:
            break
        job.lead_anew()
    assert begun == 1
    assert 10 <= minute <= 14


def test_from_one_to_the_next_it_is_as_long_as_was_asked_for() -> None:
    job = Job(every_s=60.0)
    at = []
    for second in range(1, 400):
        job.pass_time(1.0)
        commands = job.both(step=10 * second)
        if job.record.checkpoints.saving is not None:
            at.append(second)
            job.both(step=10 * second + 9)
            job.store("a")
            commands = job.store("b")
            assert PublishSaving(job.record.checkpoints.saves) in commands
            job.feed(SavingPublished(job.record.checkpoints.saves))
    assert [after - before for before, after in itertools.pairwise(at)] == [60] * (len(at) - 1)
    assert len(at) >= 5


def test_the_distance_between_tries_in_vain_grows_and_has_a_bound() -> None:
    job = Job(every_steps=10)
    at, step = [], 10
    for _ in range(6 * 60 * 10):
        step += 1
        job.now += 0.099
        commands = job.both(step=step)
        if "checkpoint_begun" in kinds(commands):
            at.append(job.now)
            job.see("a", save_failed=(job.record.checkpoints.saves, "the disk is full"))
    gaps = [after - before for before, after in itertools.pairwise(at)]
    assert gaps[:4] == pytest.approx([0.9, 1.8, 3.6, 7.2], abs=0.6)
    assert max(gaps) == pytest.approx(0.9 * 64, abs=0.6)


def test_that_savings_fail_is_on_record_for_each_leader_until_one_succeeds() -> None:
    job = Job(every_steps=10)
    step = 10
    for times in (1, 2):
        while job.record.checkpoints.saving is None:
            step += 1
            job.pass_time(0.1), job.both(step=step)
        job.see("a", save_failed=(job.record.checkpoints.saves, f"the disk is full, {times}"))
        failure = SavingFailure(f"a has no part to give: the disk is full, {times}", times)
        assert job.record.checkpoints.save_failure == failure
        assert decode_record(encode_record(job.record)).checkpoints.save_failure == job.record.checkpoints.save_failure
        job.lead_anew()
        assert job.shown_failure == failure
    while job.record.checkpoints.saving is None:
        step += 1
        job.pass_time(0.1), job.both(step=step)
    assert job.record.checkpoints.save_failure is not None, "one that is begun has not succeeded"
    job.both(step=job.record.checkpoints.saving.after_step + 1), job.store("a"), job.store("b")
    job.feed(SavingPublished(job.record.checkpoints.saves))
    assert job.record.checkpoints.saved is not None
    assert job.record.checkpoints.save_failure is None
    job.lead_anew()
    assert job.shown_failure is None


def test_a_word_of_publishing_that_is_late_comes_to_nothing() -> None:
    job = Job()
    job.both(step=5)
    job.feed(AskCheckpoint("r"))
    assert job.record.checkpoints.saves == 1
    before = job.record
    job.feed(SavingPublished(1))  # it cannot be: no part is durable
    job.feed(PublishingFailed(7, "of long ago"))
    assert job.record is before


def test_what_is_published_was_put_on_record_before() -> None:
    job = Job()
    job.both(step=5)
    job.feed(AskCheckpoint("r"))
    job.both(step=20)
    writing: Writing[object] = Writing(job.record, 1, 1)
    writing.handle(decide(job.machine, [(TimePassed(), None)], job.now))
    parts = [(Reported(worker, _stored(job, worker)), None) for worker in ("a", "b")]
    before = writing.handle(decide(job.machine, parts, job.now + 0.1))
    assert not any(isinstance(one, WriteManifest) for one in before)
    after = writing.handle(Written(2))
    [manifest] = [one for one in after if isinstance(one, WriteManifest)]
    assert manifest.record is job.record and manifest.record.checkpoints.saving.complete
    assert any(isinstance(one, Publish) for one in after)


def _stored(job: Job, worker: str) -> Observation:
    known = fields(job.last[worker])
    return Observation(**{**known, "saved_part": (job.record.checkpoints.saves, PART), "at": job.now})


def test_answers_are_as_the_record_has_it_for_each_leader() -> None:
    job = Job()
    job.both(step=5)
    assert TellOfSaving(0, "") in job.feed(AskCheckpoint("r"))
    job.lead_anew()
    assert TellOfSaving(0, "") in job.feed(AskCheckpoint("r"))
    assert len(job.record.checkpoints.save_requests) == 1
    job.both(step=20)
    job.store("a"), job.store("b")
    job.feed(SavingPublished(1))
    job.lead_anew()
    path = job.record.checkpoints.saved.path
    assert TellOfSaving(job.record.checkpoints.saved.step, path) in job.feed(AskCheckpoint("r"))


def test_a_job_without_a_ring_takes_a_request_and_saves_once_it_trains() -> None:
    job = Job.__new__(Job)
    job.machine, job.now, job.last = JobMachine(new_record("j", 0.0), LEAD), 0.0, {}
    policy = JobPolicy(checkpointing=Checkpointing("/c"))
    job.feed(Register(Identity("a", "h", "h", 1, 1), 1, 1, 0, job_policy=policy))
    assert TellOfSaving(0, "") in job.feed(AskCheckpoint("r"))
    assert not job.record.checkpoints.saves
    job.see("a", phase=Phase.TRAINING, generation=1, data=DATA)
    job.see("a", step=3)
    job.pass_time(1.0)
    assert job.record.checkpoints.saves == 1


@pytest.mark.parametrize(("asked", "goes"), [(0, True), (2, True), (1, False), (3, False)])
def test_a_request_to_go_that_was_for_another_life_of_the_job_is_refused(asked: int, goes: bool) -> None:
    job = Job(life=2)
    commands = job.feed(AskPreempt("others come first", 30.0, asked))
    assert (job.record.checkpoints.preemption is not None) == goes
    assert (Refuse(f"life {asked} of the job was to go, and it is in life 2") in commands) != goes


def test_a_saving_under_way_at_the_end_is_given_up_with_it() -> None:
    job = Job(DataSpec(total=200, epochs=1, batch=10), every_steps=5)
    job.both(step=4)
    job.both(step=5)
    assert job.record.checkpoints.saving is not None
    commands = job.both(step=10, phase=Phase.DONE)
    assert job.record.state is JobState.FINISHED
    assert "checkpoint_failed" in kinds(commands)
    assert isinstance(job.feed(AskCheckpoint("late"))[0], Refuse)


@pytest.mark.parametrize("trying", [True, False])
def test_a_request_that_is_open_at_the_end_is_refused_by_each_leader_as_the_job_is_over(trying: bool) -> None:
    """A try is under way then, or has failed so near the end that the next one is not due before."""
    job = Job(DataSpec(total=200, epochs=1, batch=10))
    job.both(step=4)
    assert TellOfSaving(0, "") in job.feed(AskCheckpoint("r"))
    assert job.record.checkpoints.saving is not None
    if not trying:
        job.see("a", save_failed=(job.record.checkpoints.saves, "the disk is full"))
        assert job.record.checkpoints.saving is None
    job.both(step=10, phase=Phase.DONE)
    assert job.record.state is JobState.FINISHED
    [asked] = job.record.checkpoints.save_requests
    assert not asked.path and not asked.failure
    for _ in range(2):
        assert Refuse("the job is over: finished") in job.feed(AskCheckpoint("r"))
        job.lead_anew()


def test_a_request_outlasts_lost_words_of_publishing_and_fails_with_its_third_saving() -> None:
    job = Job()
    job.both(step=5)
    job.feed(AskCheckpoint("r"))
    step, published = 5, []
    for _ in range(2000):
        step += 1
        commands = [*job.pass_time(5.0), *job.both(step=step)]
        saving = job.record.checkpoints.saving
        if saving is not None and not saving.complete and step > saving.after_step:
            commands += [*job.store("a"), *job.store("b")]
        published += [one.number for one in commands if isinstance(one, PublishSaving)]  # and no word of it comes
        if job.record.checkpoints.save_requests[0].failure:
            break
    assert published == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    refused = "no checkpoint came about in 3 tries, the last one for this: it could not be published: "
    for _ in range(2):
        [answer] = [one for one in job.feed(AskCheckpoint("r")) if isinstance(one, Refuse)]
        assert answer.reason.startswith(refused)
        job.lead_anew()


def test_the_end_waits_for_the_last_one_and_not_for_ever() -> None:
    job = Job(DataSpec(total=200, epochs=1, batch=10), last=True)
    job.both(step=4)
    job.both(step=5)
    saving = job.record.checkpoints.saving
    assert saving is not None and saving.after_step == 10
    job.store("a"), job.store("b")
    job.both(step=10, phase=Phase.DONE)
    assert job.record.state is JobState.RUNNING and not job.machine.at_rest
    for _ in range(10):
        job.pass_time(130.0)
    assert job.record.state is JobState.FINISHED
    assert job.record.checkpoints.saved is None


def test_orders_name_a_part_only_to_members_of_its_ring_and_only_while_one_is_missing() -> None:
    job = Job(every_steps=10)
    job.both(step=10)
    job.both(step=11)
    book = OrderBook(job.record, 1)
    saves = [book.orders(worker).save for worker in ("a", "b", "c")]
    assert [save.part for save in saves[:2]] == [0, 1] and saves[2] is None
    assert {(save.parts, save.path) for save in saves[:2]} == {(2, job.record.checkpoints.saving.path)}
    job.both(step=30)
    job.store("a"), job.store("b")
    assert OrderBook(job.record, 1).orders("a").save is None


def test_a_record_with_a_saving_is_kept_and_read_again() -> None:
    job = Job(every_steps=10)
    job.both(step=11), job.feed(AskCheckpoint("r"))
    job.both(step=30), job.store("a"), job.store("b")
    assert job.record.checkpoints.saving.complete
    assert decode_record(encode_record(job.record)) == job.record


# ------------------------------------------------------------------------------------------------------------ resuming


def saved_data(size: int = 2) -> Resumed:
    ledger = new_ledger(DATA, [f"w{rank}" for rank in range(size)])
    ledger.grant(40)
    return Resumed(17, 1, "/c/j/0001", projected(ledger, 17))


@pytest.mark.parametrize("size", [2, 3])
def test_a_job_that_is_resumed_goes_on_with_what_is_left(size: int) -> None:
    job = Job(resumed=saved_data(size))
    assert job.record.checkpoints.resumed.step == 17
    ledger = job.machine.ledger
    assert ledger is not None and not is_inherited(ledger)
    assert ledger.roster == ("a", "b")
    assert trained_by(ledger.snapshot()) == {(0, position) for position in _of_steps(size)}
    job.both(step=4)
    job.lead_anew()
    assert job.machine.ledger.roster == ("a", "b")
    assert job.record.checkpoints.resumed.path == "/c/j/0001"


def _of_steps(size: int) -> list[int]:
    """What so many ranks train in 17 of the 64 steps that were dealt at once."""
    return [640 * rank + at for rank in range(size) for at in range(170)]


def test_a_job_that_trains_on_other_data_than_it_did_fails_with_one_line() -> None:
    job = Job(DataSpec(total=1_000_000, epochs=1, batch=20), resumed=saved_data())
    assert job.record.state is JobState.FAILED
    said = "worker a trains on other data than what was saved in /c/j/0001: batch=20 for 10"
    assert job.record.reason == f"{said}; with --resume never the job begins anew"


def test_what_a_script_asks_for_is_served_by_the_saving_under_way_unless_that_is_of_an_earlier_step() -> None:
    job = Job(every_steps=10)
    job.both(step=9)
    job.both(step=10)
    saving = job.record.checkpoints.saving
    assert saving is not None
    job.both(save_wanted=saving.after_step)
    assert [one.first for one in job.record.checkpoints.save_requests] == [1]
    job.both(save_wanted=saving.after_step + 1)
    assert [one.first for one in job.record.checkpoints.save_requests] == [1, 2]


def test_a_job_that_is_not_saved_hears_no_script() -> None:
    job = Job(folder="")
    job.both(step=5, save_wanted=6)
    assert not job.record.checkpoints.save_requests and not job.record.checkpoints.save_wanted


def test_only_a_jobs_first_worker_needs_what_it_goes_on_from() -> None:
    """For all others newer checkpoints may have taken its place."""
    machine = JobMachine(new_record("j", 0.0), LEAD)

    def register(worker: str, not_resumed: str) -> list[Any]:
        identity = Identity(worker, "h", "h", 1, 1)
        return list(machine.handle(Register(identity, 2, 1, 0, not_resumed=not_resumed), 1.0))

    assert Refuse("it has no manifest.json") in register("a", "it has no manifest.json")
    assert not machine.record.members
    assert not [
        one for one in (*register("b", ""), *register("c", "it has no manifest.json")) if isinstance(one, Refuse)
    ]
    assert len(machine.record.members) == 2
