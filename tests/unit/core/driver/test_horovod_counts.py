"""Counts of workers by horovodrun's driver, as a leader has them."""

from __future__ import annotations

from itertools import pairwise

from machine_job import SPEC, Job

from edl.core.job.job_report import status_of
from edl.core.job.leader_inputs import Acknowledge, Refuse, Vanished
from edl.protocol.assignment import Verdict
from edl.protocol.leader_messages import AskScale, AskScaleIn, Phase, Register, Word
from edl.protocol.record import DriverCount, Identity, WorkerState


class Driven(Job):
    """Of workers that an elastic horovodrun has started."""

    def start(self, worker: str, slot: str) -> list[object]:
        return self.feed(Register(Identity(worker, "host", "127.0.0.1", 100, 101, slot), self.np, 1, 0))

    def word(self, worker: str, **word: object) -> list[object]:
        """Said of the driver, by a worker that trains on."""
        last = self.last[worker]
        more = {"data": last.data, "driver": Word(**word)}  # type: ignore[arg-type]
        return self.see(worker, last.phase, last.generation, last.step, **more)

    @property
    def count(self) -> DriverCount:
        assert self.machine.record.sizing.driver is not None
        return self.machine.record.sizing.driver

    def state(self, worker: str) -> WorkerState:
        return next(m.state for m in self.machine.record.members if m.identity.id == worker)


def driven(*slots: str) -> Driven:
    job = Driven(np=len(slots))
    workers = [f"w{number}" for number in range(len(slots))]
    for worker, slot in zip(workers, slots, strict=True):
        job.start(worker, slot)
    for worker in workers:
        job.see(worker, Phase.TRAINING, generation=1)
    for worker in workers:
        job.see(worker, Phase.TRAINING, generation=1, data=SPEC)
    return job


def test_all_ask_when_the_driver_has_told_one_of_a_change():
    job = driven("a:0", "a:1")
    assert [job.orders(worker).recount for worker in ("w0", "w1")] == [0, 0]
    job.word("w0", noticed=1.0)
    assert [job.orders(worker).recount for worker in ("w0", "w1")] == [1, 1]
    job.word("w0", noticed=1.0)  # an old report
    assert job.count.begun == 1


def test_the_slots_that_are_freed_leave_at_once_and_the_size_is_the_drivers():
    job = driven("a:0", "a:1", "a:2")
    job.word("w0", noticed=1.0)
    job.word("w1", answered=1, freed=True, size=1)
    job.word("w2", answered=1, freed=True, size=1)
    assert job.state("w1") is WorkerState.TRAINING  # as long as not all have their answers
    job.word("w0", answered=1, size=1)
    assert [job.state(worker) for worker in ("w1", "w2")] == [WorkerState.LEAVING] * 2
    plan = job.machine.record.plan
    assert plan is not None and plan.roster == ("w0",)
    assert job.machine.record.target == 1
    assert job.orders("w1").verdict is Verdict.LEAVE


def test_a_newcomer_takes_part_in_later_recounts_only():
    job = driven("a:0")
    job.word("w0", noticed=1.0)
    job.word("w0", answered=1, size=2)
    assert job.machine.record.target == 2
    job.start("w1", "a:1")
    assert job.orders("w1").recount == 0
    job.word("w0", answered=1, size=2, noticed=2.0)
    assert job.orders("w1").recount == 2


def test_who_registers_while_the_driver_waits_is_waited_for():
    job = driven("a:0", "a:1")
    job.word("w0", noticed=1.0)
    job.start("w2", "b:0")  # was started before, and imports for long
    assert job.orders("w2").recount == 1
    job.word("w0", answered=1, size=3)
    job.start("w3", "b:1")  # the driver has counted: this one was started by that
    assert job.orders("w3").recount == 0


def test_who_is_lost_meanwhile_is_not_waited_for():
    job = driven("a:0", "a:1")
    job.word("w0", noticed=1.0)
    job.word("w0", answered=1, size=1)
    job.see("w1", Phase.FAILED, generation=1, reason="its process ended without a word")
    assert job.count.answered == 1


def test_the_slot_of_a_worker_that_is_killed_whole_may_have_failed_in_the_drivers_eyes():
    """Its daemon cannot say so."""
    job = driven("a:0", "a:1")
    job.see("w0", Phase.TRAINING, generation=1, dead=("w1",))
    assert job.count.lost_slots == ("a:1",)


def test_the_slot_of_a_worker_that_has_ended_well_has_not_failed():
    """Its processes end, too."""
    job = driven("a:0", "a:1")
    job.see("w1", Phase.DONE, generation=1)
    job.see("w0", Phase.TRAINING, generation=1, dead=("w1",))
    assert job.count.lost_slots == ()


def test_a_host_that_is_gone_lets_the_driver_count_and_is_shown():
    job = driven("a:0", "b:0")
    job.feed(Vanished("w1", "its daemon's session ended"))
    assert job.orders("w0").recount == 0  # a worker that has left may be ending still
    job.pass_time(3.0)
    assert job.orders("w0").recount == 1
    job.word("w0", answered=1, size=1)
    record = job.machine.record
    assert (record.sizing.driver.given_up, record.sizing.driver.lost_slots, record.target) == (("b",), (), 1)
    assert "given up b" in status_of(job.machine, 1, "w0", {}).horovodrun
    job.start("w2", "b:0")
    assert job.count.given_up == ()


def test_no_recount_that_would_end_the_job():
    job = driven("a:0", "a:1")
    job.feed(Vanished("w1", "its daemon's session ended"))
    job.word("w0", noticed=1.0)
    assert job.count.begun == 0
    assert "would end the job" in status_of(job.machine, 1, "w0", {}).horovodrun
    job.start("w2", "a:1")  # its stand-in lives, and has started another one
    job.pass_time(3.0)
    assert job.count.begun == 1


def test_a_stand_in_that_is_killed_is_a_failure_in_the_drivers_eyes():
    job = driven("a:0", "b:0")
    job.word("w1", gone=True)
    assert job.count.lost_slots == ("b:0",)
    assert job.orders("w0").recount == 1


def test_no_worker_comes_from_a_slot_that_the_driver_has_counted():
    job = driven("a:0", "b:0")
    job.word("w0", noticed=1.0)
    for worker in ("w0", "w1"):
        job.word(worker, answered=1, size=3, slots=1)
    job.pass_time(0.0)
    job.pass_time(29.0)
    assert job.count.begun == 1
    job.pass_time(1.0)
    assert job.count.begun == 2
    job.start("w2", "c:0")  # it was only late, and the driver waits for it
    assert job.orders("w2").recount == 2
    job.see("w2", Phase.BOOTING, generation=0)
    for worker in ("w0", "w1", "w2"):
        job.word(worker, answered=2, size=3, slots=1)
    job.pass_time(100.0)
    assert job.count.begun == 2


def test_a_slot_that_stays_empty_is_asked_after_ever_more_seldom():
    job = driven("a:0", "b:0")
    begun = []
    for second in range(1000):
        before = job.count.begun
        job.pass_time(1.0)
        if (number := job.count.begun) > before:
            begun.append(second)
            for worker in ("w0", "w1"):
                job.word(worker, answered=number, size=3, slots=1)
        elif not number:
            for worker in ("w0", "w1"):
                job.word(worker, size=3, slots=1)
    waits = [later - earlier for earlier, later in pairwise(begun)]
    assert all(abs(wait - wanted) < 5 for wait, wanted in zip(waits, (60, 120, 240, 480), strict=True)), waits


def test_an_empty_slot_is_left_alone_where_its_failure_would_end_the_job():
    job = driven("a:0", "a:1")
    job.word("w0", noticed=1.0)
    for worker in ("w0", "w1"):
        job.word(worker, answered=1, size=3, slots=3)
    job.pass_time(0.0)
    job.pass_time(100.0)
    assert job.count.begun == 1


def test_a_slot_that_was_never_filled_at_the_start():
    job = driven("a:0", "b:0")
    for worker in ("w0", "w1"):
        job.word(worker, size=3, slots=1)
    job.pass_time(0.0)
    job.pass_time(30.0)
    assert job.count.begun == 1


def test_no_recount_when_a_script_has_ended():
    job = driven("a:0", "a:1")
    job.see("w1", Phase.DONE, generation=1, step=5)
    job.word("w0", noticed=1.0)
    assert job.count.begun == 0


def test_a_request_for_a_size_is_kept_until_the_driver_has_come_to_it():
    job = driven("a:0", "a:1")
    assert job.feed(AskScale(3)) == [job.told[-1], Acknowledge(3)]
    job.word("w0", noticed=1.0)
    for worker in ("w0", "w1"):
        job.word(worker, answered=1, size=2)
    assert job.machine.record.target == 3  # it was another change
    job.word("w0", answered=1, size=2, noticed=2.0)
    for worker in ("w0", "w1"):
        job.word(worker, answered=2, size=3)
    assert (job.machine.record.target, job.count.wished) == (3, False)
    job.word("w0", answered=2, size=3, noticed=3.0)
    for worker in ("w0", "w1"):
        job.word(worker, answered=3, size=2)
    assert job.machine.record.target == 2


def test_only_the_driver_says_who_leaves():
    job = driven("a:0", "a:1")
    assert Acknowledge(1) in job.feed(AskScale(1))
    assert [job.state(worker) for worker in ("w0", "w1")] == [WorkerState.TRAINING] * 2
    (refused,) = job.feed(AskScaleIn(("w1",)))
    assert isinstance(refused, Refuse) and "horovodrun" in refused.reason


def test_who_leaves_by_itself_does_not_change_what_the_driver_wants():
    job = driven("a:0", "a:1")
    job.see("w1", Phase.TRAINING, generation=1, leaving=True, data=SPEC)
    assert job.state("w1") is WorkerState.LEAVING
    assert job.machine.record.target == 2


def test_who_comes_into_a_slot_that_was_just_freed_leaves():
    job = driven("a:0", "a:1")
    job.word("w0", noticed=1.0)
    job.word("w0", answered=1, size=1)
    job.see("w1", Phase.FAILED, generation=1, reason="its process ended without a word")
    job.start("w2", "a:1")  # its stand-in has started it before the answer came
    job.see("w2", Phase.BOOTING, driver=Word(answered=1, freed=True, size=1))
    assert job.state("w2") is WorkerState.LEAVING


def test_a_loss_in_the_middle_of_a_recount_needs_another_one():
    job = driven("a:0", "b:0", "c:0")
    job.word("w0", noticed=1.0)
    job.feed(Vanished("w2", "its daemon's session ended"))  # perhaps after the driver has counted it
    for worker in ("w0", "w1"):
        job.word(worker, answered=1, size=3)
    job.pass_time(3.0)
    assert (job.count.begun, job.count.given_up) == (2, ())


def test_no_recount_before_those_of_the_last_one_have_ended():
    job = driven("a:0", "a:1")
    job.word("w0", noticed=1.0)
    job.word("w1", answered=1, freed=True, size=1)
    job.word("w0", answered=1, size=1, noticed=2.0)
    assert job.state("w1") is WorkerState.LEAVING
    job.pass_time(10.0)
    assert job.count.begun == 1  # its slot could be given anew, and its end be taken for the next one's
    job.see("w1", Phase.DONE, generation=1, step=99)
    job.see("w0", Phase.TRAINING, generation=2, step=99, data=SPEC, driver=Word(answered=1, size=1, noticed=2.0))
    assert [m.identity.id for m in job.machine.record.members] == ["w0"]
    job.pass_time(1.0)
    assert job.count.begun == 1
    job.pass_time(3.0)
    assert job.count.begun == 2


def test_an_answer_that_never_comes_is_not_waited_for():
    job = driven("a:0", "a:1", "a:2")
    job.word("w0", noticed=1.0)
    job.word("w0", answered=1, size=2)
    job.word("w1", answered=1, freed=True, size=0)
    assert job.count.answered == 0
    job.pass_time(6.0)
    assert job.count.answered == 1
    assert job.state("w1") is WorkerState.LEAVING
